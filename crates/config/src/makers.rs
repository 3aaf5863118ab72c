//! Commands that create the files that pipelines name.

use std::path::Path;

use serde_json::Value;
use vattention_core::PipelineConfig;

/// Returns the command that creates the file of a component, given the component's field `codes`.
pub(crate) fn maker(component: &str, codes: Option<&str>) -> Option<&'static str> {
    match component {
        "hash-attention" if codes == Some("group") => Some("vattention train-hata"),
        "hash-attention" => Some("vattention train-hash"),
        "double-sparsity" => Some("vattention calibrate double-sparsity"),
        "duo-attention" => Some("vattention calibrate duo-attention"),
        "loki" => Some("vattention calibrate loki"),
        _ => None,
    }
}

/// Advice to create a file by a command.
pub(crate) fn advice(command: &str, path: &Path) -> String {
    let path = path.display();
    format!("`{command} --trace TRACES -o {path}` makes it from traces of the model")
}

/// Advice for a message about a defective file of the pipeline: the command that creates such a
/// file, if there is one.
pub fn file_advice(pipeline: &PipelineConfig, message: &str) -> Option<String> {
    advice_within(&serde_json::to_value(pipeline).ok()?, message)
}

fn advice_within(value: &Value, message: &str) -> Option<String> {
    let maker = value["type"].as_str().and_then(|name| maker(name, value["codes"].as_str()));
    let children: Vec<&Value> = match value {
        Value::Object(entries) => entries.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return None,
    };
    let is_named = |path: &&str| path.contains(['.', '/']) && message.contains(path);
    let path = children.iter().filter_map(|child| child.as_str()).find(is_named);
    let own = maker.zip(path).map(|(command, _)| {
        format!("`{command} --trace TRACES -o FILE` makes a file from traces of this model")
    });
    own.or_else(|| children.into_iter().find_map(|child| advice_within(child, message)))
}
