//! A model's weights, loaded when they are first needed.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use vattention_llm::Model;

use crate::Result;

/// A model that is in memory, or is loaded when it is first asked something: to tell what is known of answers that are
/// kept needs none.
#[allow(missing_debug_implementations)]
pub enum LazyWeights<'a> {
    /// In memory.
    Loaded(&'a Model),
    /// Of a directory or a GGUF file.
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
    /// Those of a directory or a GGUF file, not loaded yet.
    pub fn on_demand(path: &'a Path) -> Self {
        let own = OnDemand { path, model: OnceLock::new(), loading: Mutex::new(()) };
        Self::OnDemand(Box::new(own))
    }

    /// Returns the model, if it is in memory.
    pub fn loaded(&self) -> Option<&Model> {
        match self {
            Self::Loaded(model) => Some(model),
            Self::OnDemand(own) => own.model.get(),
        }
    }

    /// The model.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn model(&self) -> Result<&Model> {
        let own = match self {
            Self::Loaded(model) => return Ok(model),
            Self::OnDemand(own) => own,
        };
        let _alone = own.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if own.model.get().is_none() {
            let _ = own.model.set(Model::open(own.path)?);
        }
        Ok(own.model.get().expect("it was just loaded"))
    }
}
