//! Fields of a pipeline that are shares of the context.

use serde_json::Value;
use vattention_core::schemars::SchemaGenerator;
use vattention_core::{
    PipelineConfig, Size,
    plugin::{ComponentKind, components},
};

use crate::schema::{fields, is_selector, is_size};

/// Returns the fields of a pipeline that are shares of the context, by their names in messages
/// (`selectors[2].size`), in the order of the file. Sizes in tokens are left out.
pub fn shares(pipeline: &PipelineConfig) -> Vec<(String, Size)> {
    let mut found = Vec::new();
    collect_all(pipeline, "", &mut found);
    for (i, settings) in pipeline.layers.iter().enumerate() {
        collect_all(&settings.pipeline, &format!("layers[{i}]."), &mut found);
    }
    found
}

/// Adds the shares of some layers; `within` precedes the fields.
fn collect_all(pipeline: &PipelineConfig, within: &str, found: &mut Vec<(String, Size)>) {
    for (i, selector) in pipeline.selectors.iter().enumerate() {
        let place = format!("{within}selectors[{i}]");
        collect(ComponentKind::Selector, serde_json::to_value(selector), &place, found);
    }
    if let Some(estimator) = &pipeline.estimator {
        let base = pipeline.sampler().base();
        found.extend(base.share().map(|_| (format!("{within}sampler.base"), base)));
        let table = serde_json::to_value(estimator);
        collect(ComponentKind::Estimator, table, &format!("{within}estimator"), found);
    }
}

/// Adds the shares in a component's table, and in the tables of selectors within.
fn collect(
    kind: ComponentKind,
    table: serde_json::Result<Value>,
    place: &str,
    found: &mut Vec<(String, Size)>,
) {
    let table = table.unwrap_or_default();
    let named = components(kind).into_iter().find(|component| table["type"] == component.name);
    let Some(component) = named else { return };
    let schema = fields(component, &mut SchemaGenerator::default());
    for (key, field) in schema["properties"].as_object().into_iter().flatten() {
        let (value, place) = (table[key].clone(), format!("{place}.{key}"));
        if is_selector(field) {
            collect(kind, Ok(value), &place, found);
        } else if is_size(field) {
            let size: Option<Size> = serde_json::from_value(value).ok();
            let share = size.filter(|size| size.share().is_some());
            found.extend(share.map(|share| (place, share)));
        }
    }
}
