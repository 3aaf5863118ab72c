//! Serialization of a pipeline to the text of a file that loads as the same pipeline.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use vattention_core::schemars::SchemaGenerator;
use vattention_core::{
    PipelineConfig,
    plugin::{ComponentKind, components},
};

use crate::schema::fields;

/// Serializes a pipeline to TOML for a file in `folder`. The text extends no other file, and paths
/// of files that its fields name are relative to the folder.
///
/// # Errors
/// A component that TOML cannot express, or a folder or file that does not exist.
pub fn to_toml(pipeline: &PipelineConfig, folder: &Path) -> Result<String, String> {
    let mut value = serde_json::to_value(pipeline).map_err(|error| error.to_string())?;
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    make_paths_relative(&mut value, &folder)?;
    drop_nulls(&mut value);
    toml::to_string(&value).map_err(|error| error.to_string())
}

/// Makes paths in the tables of components relative to a folder.
fn make_paths_relative(value: &mut Value, folder: &Path) -> Result<(), String> {
    if let Some(name) = value["type"].as_str().map(str::to_owned) {
        let kinds = [ComponentKind::Selector, ComponentKind::Sampler, ComponentKind::Estimator];
        let named = kinds.into_iter().flat_map(components).find(|component| component.name == name);
        let schema = named.map(|component| fields(component, &mut SchemaGenerator::default()));
        for (key, field) in value.as_object_mut().into_iter().flatten() {
            if schema.as_ref().is_some_and(|schema| schema["properties"][key]["format"] == "path")
                && let Some(path) = field.as_str()
            {
                let file =
                    Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
                *field = relative(&file, folder).to_string_lossy().into_owned().into();
            }
        }
    }
    match value {
        Value::Array(items) => {
            items.iter_mut().try_for_each(|item| make_paths_relative(item, folder))
        }
        Value::Object(entries) => {
            entries.iter_mut().try_for_each(|(_, entry)| make_paths_relative(entry, folder))
        }
        _ => Ok(()),
    }
}

/// Path of a file relative to a folder, both given as absolute paths.
fn relative(file: &Path, folder: &Path) -> PathBuf {
    let (file, folder): (Vec<_>, Vec<_>) =
        (file.components().collect(), folder.components().collect());
    let common = file.iter().zip(&folder).take_while(|(a, b)| a == b).count();
    let up = folder[common..].iter().map(|_| Component::ParentDir);
    up.chain(file[common..].iter().copied()).collect()
}

/// Removes fields that are not set: TOML has no null.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Object(entries) => {
            entries.retain(|_, entry| !entry.is_null());
            entries.values_mut().for_each(drop_nulls);
        }
        _ => {}
    }
}
