//! A pipeline as the text of a file, which loads as the same pipeline.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use vattention_core::schemars::SchemaGenerator;
use vattention_core::{
    PipelineConfig,
    plugin::{ComponentKind, components},
};

use crate::schema::fields;

/// The pipeline as TOML for a file in `folder`: whole, with the files that its fields name relative to the folder.
///
/// # Errors
/// A component that TOML cannot hold, or a folder or file that is not there.
pub fn to_toml(pipeline: &PipelineConfig, folder: &Path) -> Result<String, String> {
    let mut value = serde_json::to_value(pipeline).map_err(|error| error.to_string())?;
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    relative_files(&mut value, &folder)?;
    drop_nulls(&mut value);
    toml::to_string(&value).map_err(|error| error.to_string())
}

/// Makes the fields that name files relative to a folder, in every table that is a component's.
fn relative_files(value: &mut Value, folder: &Path) -> Result<(), String> {
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
        Value::Array(items) => items.iter_mut().try_for_each(|item| relative_files(item, folder)),
        Value::Object(entries) => {
            entries.iter_mut().try_for_each(|(_, entry)| relative_files(entry, folder))
        }
        _ => Ok(()),
    }
}

/// How a file is called in a folder, both absolute.
fn relative(file: &Path, folder: &Path) -> PathBuf {
    let (file, folder): (Vec<_>, Vec<_>) =
        (file.components().collect(), folder.components().collect());
    let common = file.iter().zip(&folder).take_while(|(a, b)| a == b).count();
    let up = folder[common..].iter().map(|_| Component::ParentDir);
    up.chain(file[common..].iter().copied()).collect()
}

/// Takes out what TOML has no word for: fields that are not set.
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
