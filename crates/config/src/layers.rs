//! `[[layers]]`: settings of some layers, which change the rest of the file in the same way as a
//! file changes the file that it extends.

use std::path::Path;
use std::sync::Arc;

use vattention_core::pipeline::LayerSettings;

use crate::node::{Node, Value};
use crate::reader::{Reader, TreeReader};

/// Keys of a table under `[[layers]]`.
const KEYS: [&str; 5] = ["at", "alone", "selectors", "sampler", "estimator"];

/// Keys whose values change the values in the rest of the file, or with `alone` replace them.
const PARTS: [&str; 3] = ["selectors", "sampler", "estimator"];

impl Reader {
    /// Reads the tables under `[[layers]]`. Problems in the rest of the tree are not reported
    /// again.
    pub(crate) fn read_layers(&mut self, tree: &Node, path: &Path) -> Vec<LayerSettings> {
        let mut rest = tree.clone();
        rest.take("layers");
        let mut all = Vec::new();
        for (i, table) in self.read_tables(tree, "layers").iter().enumerate() {
            let within = format!("layers[{i}]");
            if !matches!(table.value, Value::Table(_)) {
                let message = format!("wrong type for {within}: expected a table");
                self.add_problem(&table.span, message, "this is not a table", None);
                continue;
            }
            let before = self.problems.len();
            all.push(self.read_layer(table, rest.clone(), path, &format!("{within}.")));
            let mut new = self.problems.split_off(before);
            new.retain(|new| self.problems.iter().all(|old| old.span() != new.span()));
            self.problems.extend(new);
        }
        all
    }

    /// Reads one table as changes to the rest of the file.
    fn read_layer(&mut self, table: &Node, rest: Node, path: &Path, within: &str) -> LayerSettings {
        self.refuse_unknown_keys(table, &KEYS, within);
        let mut values = TreeReader { reader: self, tree: table, within };
        let at: Vec<_> = values.read_list("at");
        let alone: bool = values.read("alone").unwrap_or_default();
        if at.is_empty() && table.get("at").is_none_or(Node::is_empty) {
            let message = format!("{within}at names no layer");
            let span = &table.get("at").unwrap_or(table).span;
            let help = "write `at = [0, 1, \"28..32\"]`; the end of a range is left out";
            self.add_problem(span, message, "which layers?", Some(help.into()));
        }
        let (mut over, mut whole) = (table.clone(), rest);
        over.retain_keys(&PARTS);
        if alone {
            for part in PARTS {
                whole.take(part);
            }
        }
        self.change(&mut whole, "the rest of the file", over);
        LayerSettings { at, pipeline: Arc::new(self.read_settings(&whole, path, within)) }
    }
}
