//! Texts into a tree, and the tree into a pipeline, noting every problem on the way.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use vattention_core::{
    BudgetEstimator, ComponentKind, Conflict, PipelineConfig, SamplerConfig, SelectorConfig,
    components,
};

use crate::de::{read, read_all};
use crate::extends::{Misfit, change};
use crate::files::resolve_files;
use crate::node::{Entry, Node, Span, Value};
use crate::problem::{Cause, ConfigError, Problem, Source, Sources};
use crate::words::{Subject, list, suggestion};

/// Bytes in a text, at most.
const LARGEST: u64 = 16 << 20;

/// The keys of a pipeline file.
const KEYS: [&str; 9] = [
    "name",
    "seed",
    "share",
    "dense_layers",
    "selectors",
    "sampler",
    "estimator",
    "extends",
    "unset",
];

/// Texts read so far, and what was wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    sources: Sources,
    /// The files among them.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) problems: Vec<Problem>,
    /// Lines with a syntax error, `(source, line)`.
    broken: Vec<(usize, usize)>,
}

impl Reader {
    /// Reads a file and what it extends. `above` are the files that extend this one.
    pub(crate) fn read_file(&mut self, path: &Path, above: &mut Vec<PathBuf>) -> Option<Node> {
        match read_limited(path) {
            Ok(text) => {
                self.files.push(path.to_path_buf());
                Some(self.read_text(path, text, above))
            }
            Err(error) => {
                let message = format!("{}: cannot be read: {error}", path.display());
                self.problems.push(Problem::of_file(message));
                None
            }
        }
    }

    pub(crate) fn read_text(
        &mut self,
        path: &Path,
        text: String,
        above: &mut Vec<PathBuf>,
    ) -> Node {
        let tree = self.parse(path.display().to_string(), text);
        let Some(entry) = tree.entry("extends").cloned() else {
            self.only_with_extends(&tree);
            return tree;
        };
        let Some(base) = entry.node.as_str() else {
            let message = "wrong type for extends: expected a path in quotes";
            self.problem(&entry.node.span, message, "this is not text", None);
            return tree;
        };
        let base_path = path.parent().unwrap_or(Path::new("")).join(base);
        above.push(canonical(path));
        let loops = above.contains(&canonical(&base_path));
        let refusal = if loops {
            Some(format!("`extends` leads back to {}", base_path.display()))
        } else if base_path.is_file() {
            None
        } else {
            Some(format!("`extends` names {}, which is not a file", base_path.display()))
        };
        if let Some(message) = refusal {
            self.problem(&entry.node.span, message, "expected the path of another file", None);
            return tree;
        }
        let before = self.problems.len();
        let Some(mut merged) = self.read_file(&base_path, above) else {
            let message = self.problems.drain(before..).map(|p| p.to_string()).collect::<String>();
            self.problem(&entry.node.span, message, "named here", None);
            return tree;
        };
        if let Some(name) = merged.get("name").filter(|name| name.as_str().is_none()) {
            let message = "wrong type for name: expected text in quotes";
            self.problem(&name.span.clone(), message, "this is not text", None);
        }
        merged.take("name");
        merged.take("extends");
        self.change(&mut merged, &base_path.display().to_string(), tree);
        merged
    }

    /// Lays one `--set` on the tree.
    pub(crate) fn apply(&mut self, index: usize, change: &str, tree: &mut Node) {
        let node = self.parse(format!("--set #{}", index + 1), quoted_if_needed(change));
        if let Some(entry) = node.entry("extends") {
            let help = "write it in the file";
            let message = "`extends` cannot be set";
            self.problem(&entry.span, message, "comes too late here", Some(help.into()));
        }
        if node.entries().is_empty() && self.broken.is_empty() {
            self.problem(&node.span, "expected KEY = VALUE", "nothing is set here", None);
        }
        self.change(tree, "the pipeline", node);
    }

    /// Lays a file, or a `--set`, on what it changes.
    fn change(&mut self, base: &mut Node, name: &str, over: Node) {
        for Misfit { span, message, label, help } in change(base, name, over) {
            self.problem(&span, message, label, Some(help));
        }
    }

    /// Refuses what only a file that extends another can say.
    fn only_with_extends(&mut self, tree: &Node) {
        if let Some(entry) = tree.entry("unset") {
            let message = "`unset` takes something out of the file that `extends` names";
            let help = "write `extends = \"base.toml\"`, or leave out `unset`";
            self.problem(&entry.span, message, "nothing is extended here", Some(help.into()));
        }
    }

    /// Parses a text, noting syntax errors.
    fn parse(&mut self, name: String, text: String) -> Node {
        let source = self.sources.0.len();
        let (node, errors) = Node::parse(source, &text);
        self.sources.0.push(Source { name, text: text.into() });
        for error in errors {
            let span = Span::new(source, error.span().unwrap_or(0..0));
            let message = format!("TOML syntax: {}", error.message());
            let problem = Problem::new(&self.sources, &span, message, "here", None);
            self.broken.extend(problem.line());
            self.problems.push(problem.because(Cause::Syntax));
        }
        node
    }

    fn problem(
        &mut self,
        span: &Span,
        message: impl Into<String>,
        label: impl Into<String>,
        help: Option<String>,
    ) {
        self.problems.push(Problem::new(&self.sources, span, message, label, help));
    }

    /// Reads every part of the tree.
    pub(crate) fn pipeline(&mut self, tree: &Node, path: &Path) -> PipelineConfig {
        self.unknown_keys(tree);
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let mut part = Part { reader: self, tree };
        let name: Option<String> = part.name();
        let mut pipeline = PipelineConfig {
            name: name.or(stem).unwrap_or_default(),
            seed: part.top("seed").unwrap_or_default(),
            share: part.top("share").unwrap_or_default(),
            dense_layers: part.list("dense_layers"),
            sampler: part.table::<SamplerConfig>("sampler", &[]),
            estimator: part
                .table::<Box<dyn BudgetEstimator>>("estimator", &known(ComponentKind::Estimator)),
            ..PipelineConfig::default()
        };
        let mut places = Vec::new();
        for (i, node) in self.selector_nodes(tree).iter().enumerate() {
            let known = known(ComponentKind::Selector);
            let subject = Subject { what: &format!("selectors[{i}]"), known_types: &known };
            if let Some(selector) = self.component::<Box<dyn SelectorConfig>>(node, subject) {
                pipeline.selectors.push(selector);
                places.push(node.get("type").unwrap_or(node).span.clone());
            }
        }
        self.conflicts(&mut pipeline, tree, &places);
        pipeline
    }

    fn unknown_keys(&mut self, tree: &Node) {
        for Entry { key, span, .. } in tree.entries() {
            if !KEYS.contains(&key.as_str()) {
                let help = format!("{}the keys here are {}", suggestion(key, &KEYS), list(&KEYS));
                let message = format!("unknown key `{key}`");
                let problem =
                    Problem::new(&self.sources, span, message, "not a key here", Some(help));
                self.problems.push(problem.because(Cause::Structure));
            }
        }
    }

    /// The tables under `[[selectors]]`.
    fn selector_nodes(&mut self, tree: &Node) -> Vec<Node> {
        let Some(node) = tree.get("selectors") else { return Vec::new() };
        if let Value::Array(items) = &node.value {
            return items.clone();
        }
        let help = "write `[[selectors]]`, with double brackets, once per selector";
        let message = "`selectors` must be an array of tables";
        self.problem(&node.span, message, "this is not an array", Some(help.into()));
        Vec::new()
    }

    /// Reads a component from its own table.
    fn component<T: DeserializeOwned>(&mut self, node: &Node, subject: Subject<'_>) -> Option<T> {
        if !matches!(node.value, Value::Table(_)) {
            let message = format!("wrong type for {}: expected a table", subject.what);
            self.problem(&node.span, message, "this is not a table", None);
            return None;
        }
        let faults = match read_all(&resolve_files(node, &self.sources)) {
            Ok(component) => return Some(component),
            Err(faults) => faults,
        };
        let problems = faults.iter().map(|fault| subject.problem(&self.sources, node, fault));
        self.problems.extend(problems);
        None
    }

    /// Notes parts that do not go together.
    fn conflicts(&mut self, pipeline: &mut PipelineConfig, tree: &Node, places: &[Span]) {
        let sampler = pipeline.sampler;
        if tree.get("estimator").is_some() && pipeline.estimator.is_none() {
            pipeline.sampler = None;
        }
        for Conflict { at, message, help } in pipeline.conflicts() {
            let index = at.strip_prefix("selectors[").and_then(|at| at.strip_suffix(']'));
            let span = match index.and_then(|index| index.parse::<usize>().ok()) {
                Some(index) => places.get(index).cloned(),
                None => tree.entry(&at).map(|entry| entry.span.clone()),
            };
            let span = span.unwrap_or_else(|| tree.span.clone());
            self.problem(&span, message, "this part", Some(help));
        }
        pipeline.sampler = sampler;
    }

    /// The problems in order, less those that a broken line may have caused.
    pub(crate) fn into_error(mut self) -> ConfigError {
        if !self.broken.is_empty() {
            let broken = self.broken;
            self.problems.retain(|problem| {
                let on_broken_line = problem.line().is_some_and(|line| broken.contains(&line));
                match problem.cause {
                    Cause::Syntax => true,
                    Cause::Structure => false,
                    Cause::Value => !on_broken_line,
                }
            });
        }
        self.problems.sort_by_key(|problem| problem.span().cloned());
        ConfigError { problems: self.problems }
    }
}

/// Reads named parts of a tree.
struct Part<'a> {
    reader: &'a mut Reader,
    tree: &'a Node,
}

impl Part<'_> {
    /// A plain value at the top of the file.
    fn top<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let node = self.tree.get(key)?;
        let subject = Subject { what: key, known_types: &[] };
        read(node)
            .map_err(|located| {
                let problem = subject.problem(&self.reader.sources, node, &located);
                self.reader.problems.push(problem);
            })
            .ok()
    }

    /// The name, which is shown on one line.
    fn name(&mut self) -> Option<String> {
        let name: String = self.top("name")?;
        if name.is_empty() || name.contains(char::is_control) {
            let span = &self.tree.get("name")?.span;
            let message = "bad value for name: expected one line of text";
            self.reader.problem(span, message, "here", None);
        }
        Some(name)
    }

    /// A list of plain values, less those that are wrong.
    fn list<T: DeserializeOwned>(&mut self, key: &str) -> Vec<T> {
        let Some(Value::Array(items)) = self.tree.get(key).map(|node| &node.value) else {
            return self.top(key).unwrap_or_default();
        };
        let item = |(i, node): (usize, &Node)| {
            let subject = Subject { what: &format!("{key}[{i}]"), known_types: &[] };
            let note = |located| subject.problem(&self.reader.sources, node, &located);
            read(node).map_err(|located| self.reader.problems.push(note(located))).ok()
        };
        items.iter().enumerate().filter_map(item).collect()
    }

    /// A table.
    fn table<T: DeserializeOwned>(&mut self, key: &str, known_types: &[&'static str]) -> Option<T> {
        let node = self.tree.get(key)?;
        self.reader.component(node, Subject { what: key, known_types })
    }
}

/// The text of a file, which may not be larger than any pipeline file is.
fn read_limited(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(LARGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST {
        let reason = format!("larger than {LARGEST} bytes, which no pipeline file is");
        return Err(std::io::Error::other(reason));
    }
    Ok(text)
}

/// A change whose value is a bare word, as shells leave it, with quotes around the word.
fn quoted_if_needed(change: &str) -> String {
    let word = |text: &str| {
        text.starts_with(char::is_alphabetic) && !["true", "false", "inf", "nan"].contains(&text)
    };
    match change.split_once('=') {
        Some((key, value)) if word(value.trim()) && !value.contains(['"', '\'', '\n', '\\']) => {
            format!("{key}= \"{}\"", value.trim())
        }
        _ => change.to_owned(),
    }
}

fn known(kind: ComponentKind) -> Vec<&'static str> {
    components(kind).into_iter().map(|component| component.name).collect()
}

/// A path that compares equal however it is written, as far as the file exists.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}
