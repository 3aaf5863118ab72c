//! Weights of a model that are loaded when they are first needed.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use vattention_llm::Model;

use crate::Result;

/// A model that is in memory, or is loaded when it is first needed. Reports on stored answers need
/// no weights.
#[allow(missing_debug_implementations)]
pub enum LazyWeights<'a> {
    /// Weights in memory.
    Loaded(&'a Model),
    /// Weights of a directory or a GGUF file.
    OnDemand(Box<OnDemand<'a>>),
}

/// Weights that may not be in memory yet.
#[allow(missing_debug_implementations)]
pub struct OnDemand<'a> {
    path: &'a Path,
    model: OnceLock<Model>,
    loading: Mutex<()>,
}

impl<'a> LazyWeights<'a> {
    /// Refers to the weights of a directory or a GGUF file, without loading them.
    pub fn on_demand(path: &'a Path) -> Self {
        let on_demand = OnDemand { path, model: OnceLock::new(), loading: Mutex::new(()) };
        Self::OnDemand(Box::new(on_demand))
    }

    /// Returns the model, if it is in memory.
    pub fn loaded(&self) -> Option<&Model> {
        match self {
            Self::Loaded(model) => Some(model),
            Self::OnDemand(on_demand) => on_demand.model.get(),
        }
    }

    /// Returns the model, and loads it at the first call.
    ///
    /// # Errors
    /// If the model cannot be loaded.
    pub fn model(&self) -> Result<&Model> {
        let on_demand = match self {
            Self::Loaded(model) => return Ok(model),
            Self::OnDemand(on_demand) => on_demand,
        };
        let _alone = on_demand.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if on_demand.model.get().is_none() {
            let _ = on_demand.model.set(Model::open(on_demand.path)?);
        }
        Ok(on_demand.model.get().expect("it was just loaded"))
    }
}
