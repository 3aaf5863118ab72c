//! `GET /v1/models`: the ids of the model's pipelines.

use serde::Serialize;

use crate::error::ApiError;
use crate::served::{ModelId, ServedModel};
use crate::state::App;

/// List of models.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelCard>,
}

/// Model in the API.
#[derive(Debug, Serialize)]
pub(crate) struct ModelCard {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    max_model_len: usize,
    vattention: PipelineCard,
}

/// Object `vattention` of a model.
#[derive(Debug, Serialize)]
struct PipelineCard {
    pipeline: String,
}

/// Returns the list of all ids.
pub(crate) fn list_models(app: &App) -> ModelList {
    let ids = app.served.ids();
    let data = ids.into_iter().map(|id| describe_model(app, id)).collect();
    ModelList { object: "list", data }
}

/// Returns the description of the model with an id.
pub(crate) fn find_model(app: &App, id: &str) -> Result<ModelCard, ApiError> {
    let pipeline = app.served.find_pipeline(id)?;
    Ok(describe_model(app, ModelId { id: id.to_owned(), pipeline }))
}

fn describe_model(app: &App, id: ModelId) -> ModelCard {
    let ServedModel { config, pipelines, .. } = &app.served;
    ModelCard {
        id: id.id,
        object: "model",
        created: app.started,
        owned_by: "vattention",
        max_model_len: config.context,
        vattention: PipelineCard { pipeline: pipelines[id.pipeline].clone() },
    }
}
