//! The model that a server serves, under the ids of its pipelines.

use std::sync::Arc;

use vattention_llm::{ChatTemplate, Config, Tokenizer};

use crate::engine::EngineHandle;
use crate::error::ApiError;

/// Name of the pipeline that every server has: dense attention.
pub const DENSE: &str = "dense";

/// Model with its tokenizer, its template, and the engine that runs it.
#[derive(Debug)]
pub struct ServedModel {
    /// Name of the model, the first part of its ids.
    pub name: String,
    /// Names of the engine's pipelines, in the engine's order. An id that names no pipeline selects
    /// the first one.
    pub pipelines: Vec<String>,
    /// Dimensions of the model.
    pub config: Config,
    /// Tokenizer of the model.
    pub tokenizer: Arc<Tokenizer>,
    /// Template of chats; `None` if the model has none.
    pub template: Option<ChatTemplate>,
    /// Engine that runs the model.
    pub engine: EngineHandle,
}

/// Id of a model in the API, and the pipeline that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelId {
    /// Id: `NAME`, or `NAME@PIPELINE`.
    pub id: String,
    /// Index of the pipeline.
    pub pipeline: usize,
}

/// Returns the ids of a model with these pipelines: the model's name, which selects the first
/// pipeline, and one id for each pipeline.
pub fn list_ids(name: &str, pipelines: &[String]) -> Vec<ModelId> {
    let first = ModelId { id: name.to_owned(), pipeline: 0 };
    let of_pipelines = pipelines.iter().enumerate();
    let named =
        of_pipelines.map(|(pipeline, part)| ModelId { id: format!("{name}@{part}"), pipeline });
    [first].into_iter().chain(named).collect()
}

impl ServedModel {
    /// Returns the ids of the model.
    pub(crate) fn ids(&self) -> Vec<ModelId> {
        list_ids(&self.name, &self.pipelines)
    }

    /// Returns the index of the pipeline that an id names.
    pub(crate) fn find_pipeline(&self, id: &str) -> Result<usize, ApiError> {
        let ids = self.ids();
        let found = ids.iter().find(|known| known.id == id).map(|known| known.pipeline);
        found.ok_or_else(|| {
            let known: Vec<&str> = ids.iter().map(|known| known.id.as_str()).collect();
            let id: String = id.chars().take(80).collect();
            ApiError::unknown_model(&id, &known)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_alone_stands_for_the_first_pipeline() {
        let ids = list_ids("smollm2", &["priority".into(), DENSE.into()]);
        let found: Vec<_> = ids.iter().map(|id| (id.id.as_str(), id.pipeline)).collect();
        assert_eq!(found, [("smollm2", 0), ("smollm2@priority", 0), ("smollm2@dense", 1)]);
    }
}
