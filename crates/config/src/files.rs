//! Fields that name files: relative to the file that they stand in, as `extends` is.
//!
//! A component says that a field is one by its schema, `"format": "path"`. A path in a `--set` is
//! relative to the working directory.

use std::path::Path;

use vattention_core::schemars::SchemaGenerator;
use vattention_core::{ComponentKind, components};

use crate::node::{Node, Value};
use crate::problem::Sources;
use crate::schema::{fields, is_selector};

/// The table of a component, with the paths in it as seen from the working directory.
pub(crate) fn resolve_files(table: &Node, sources: &Sources) -> Node {
    let mut table = table.clone();
    let known = table.get("type").and_then(Node::as_str).and_then(|name| {
        let kinds = [ComponentKind::Selector, ComponentKind::Estimator];
        kinds.into_iter().flat_map(components).find(|component| component.name == name)
    });
    if let (Some(component), Value::Table(entries)) = (known, &mut table.value) {
        let schema = fields(component, &mut SchemaGenerator::default());
        for entry in entries {
            let field = &schema["properties"][&entry.key];
            if is_selector(field) {
                entry.node = resolve_files(&entry.node, sources);
            }
            let is_file = field["format"] == "path";
            let folder = Path::new(&sources.0[entry.node.span.source].name).parent();
            if let (true, Value::Str(path), Some(folder)) = (is_file, &mut entry.node.value, folder)
            {
                *path = folder.join(&*path).to_string_lossy().into_owned();
            }
        }
    }
    table
}
