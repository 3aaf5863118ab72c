//! Fields that name files. Like `extends`, paths are relative to the pipeline file that has them.
//!
//! The schema of a component marks such a field by `"format": "path"`. A path in a `--set` is
//! relative to the working directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use vattention_core::plugin::{ComponentKind, components};
use vattention_core::schemars::SchemaGenerator;

use crate::makers::{advice, maker};
use crate::node::{Node, TextSpan, Value};
use crate::problem::Sources;
use crate::schema::{fields, is_selector};

/// A file that a field names.
#[derive(Debug)]
pub(crate) struct NamedFile {
    /// Path relative to the working directory, or absolute.
    path: PathBuf,
    /// Place of the field.
    pub(crate) span: TextSpan,
    /// Advice with the command that makes the file, if there is one.
    pub(crate) advice: Option<String>,
}

impl NamedFile {
    /// Returns a message if the file cannot be read.
    pub(crate) fn check(&self) -> Option<String> {
        // The type is checked before the file is opened: opening a pipe would wait for its writer.
        let reason = match self.path.metadata() {
            Ok(data) if !data.is_file() => "it is not a file".into(),
            Ok(_) => File::open(&self.path).err()?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("{} cannot be read: {reason}", self.path.display()))
    }
}

/// Returns the table of a component with its paths relative to the working directory, and the files
/// that the paths name.
pub(crate) fn resolve_files(table: &Node, sources: &Sources) -> (Node, Vec<NamedFile>) {
    let mut files = Vec::new();
    let table = resolve(table, sources, &mut files);
    (table, files)
}

fn resolve(table: &Node, sources: &Sources, files: &mut Vec<NamedFile>) -> Node {
    let mut table = table.clone();
    let text = |key| table.get(key).and_then(Node::as_str).map(str::to_owned);
    let maker = text("type").and_then(|name| maker(&name, text("codes").as_deref()));
    let component = table.get("type").and_then(Node::as_str).and_then(|name| {
        let kinds = [ComponentKind::Selector, ComponentKind::Estimator];
        kinds.into_iter().flat_map(components).find(|component| component.name == name)
    });
    if let (Some(component), Value::Table(entries)) = (component, &mut table.value) {
        let schema = fields(component, &mut SchemaGenerator::default());
        for entry in entries {
            let field = &schema["properties"][&entry.key];
            if is_selector(field) {
                entry.node = resolve(&entry.node, sources, files);
            }
            let is_file = field["format"] == "path";
            let folder = Path::new(&sources.0[entry.node.span.source].name).parent();
            if let (true, Value::Str(path), Some(folder)) = (is_file, &mut entry.node.value, folder)
            {
                let file = folder.join(&*path);
                *path = file.to_string_lossy().into_owned();
                let advice = maker.map(|command| advice(command, &file));
                files.push(NamedFile { path: file, span: entry.node.span.clone(), advice });
            }
        }
    }
    table
}
