//! `[[layers]]`: settings of some layers, laid over those of all as a file is laid over the one that
//! it extends.

use std::path::Path;
use std::sync::Arc;

use vattention_core::pipeline::LayerSettings;

use crate::node::{Node, Value};
use crate::reader::{Part, Reader};

/// The keys of such a table.
const KEYS: [&str; 5] = ["at", "alone", "selectors", "sampler", "estimator"];

/// Those among them that are laid over the rest of the file, or stand in its place.
const PARTS: [&str; 3] = ["selectors", "sampler", "estimator"];

impl Reader {
    /// Reads the tables under `[[layers]]`. What is wrong with the rest of the tree is not told
    /// again.
    pub(crate) fn layers(&mut self, tree: &Node, path: &Path) -> Vec<LayerSettings> {
        let mut rest = tree.clone();
        rest.take("layers");
        let mut all = Vec::new();
        for (i, table) in self.tables(tree, "layers").iter().enumerate() {
            let within = format!("layers[{i}]");
            if !matches!(table.value, Value::Table(_)) {
                let message = format!("wrong type for {within}: expected a table");
                self.problem(&table.span, message, "this is not a table", None);
                continue;
            }
            let known = self.problems.len();
            all.push(self.settings(table, rest.clone(), path, &format!("{within}.")));
            let mut new = self.problems.split_off(known);
            new.retain(|one| self.problems.iter().all(|told| told.span() != one.span()));
            self.problems.extend(new);
        }
        all
    }

    /// Reads one table, over the rest.
    fn settings(&mut self, table: &Node, rest: Node, path: &Path, within: &str) -> LayerSettings {
        self.unknown_keys(table, &KEYS, within);
        let mut part = Part { reader: self, tree: table, within };
        let at: Vec<_> = part.list("at");
        let alone: bool = part.top("alone").unwrap_or_default();
        if at.is_empty() && table.get("at").is_none_or(Node::is_empty) {
            let message = format!("{within}at names no layer");
            let span = &table.get("at").unwrap_or(table).span;
            let help = "write `at = [0, 1, \"28..32\"]`; the end of a range is left out";
            self.problem(span, message, "which layers?", Some(help.into()));
        }
        let (mut over, mut whole) = (table.clone(), rest);
        over.keep(&PARTS);
        if alone {
            for part in PARTS {
                whole.take(part);
            }
        }
        self.change(&mut whole, "the rest of the file", over);
        LayerSettings { at, pipeline: Arc::new(self.at_layers(&whole, path, within)) }
    }
}
