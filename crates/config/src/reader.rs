//! Reader of pipelines: texts are parsed into a tree, and the tree is read as a pipeline. All
//! problems are recorded.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use vattention_core::{
    Conflict, Estimator, PipelineConfig, SamplerConfig, SelectorConfig, plugin::ComponentKind,
};

use crate::de::{read, read_all};
use crate::duplicates::{SyntaxProblem, describe_errors};
use crate::extends::{ChangeFault, change};
use crate::files::resolve_files;
use crate::library::{self, explain, locate};
use crate::names::{suggest, suggest_place};
use crate::node::{DATE, Node, TableEntry, TextSpan, Value};
use crate::problem::{Cause, ConfigError, Problem, SourceText, Sources};

use crate::words::{Subject, list, with_suggestion};

/// Largest size of a file in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Keys of a pipeline file.
const KEYS: [&str; 10] = [
    "name",
    "seed",
    "share",
    "dense_layers",
    "selectors",
    "sampler",
    "estimator",
    "layers",
    "extends",
    "unset",
];

/// Texts read so far, and their problems.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    sources: Sources,
    /// Files that were read, without built-in pipelines.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) problems: Vec<Problem>,
    /// Lines with a syntax error, `(source, line)`.
    broken: Vec<(usize, usize)>,
}

impl Reader {
    /// Reads a file and the files that it extends. `above` are the files that extend this one.
    pub(crate) fn read_file(&mut self, path: &Path, above: &mut Vec<PathBuf>) -> Option<Node> {
        let text = self.read_source(path)?;
        Some(self.read_text(path, text, above))
    }

    /// Reads a file that cannot extend another.
    pub(crate) fn read_alone(&mut self, path: &Path) -> Option<Node> {
        let text = self.read_source(path)?;
        Some(self.parse(path.display().to_string(), text, false))
    }

    /// Returns the text of a file or of a built-in pipeline.
    fn read_source(&mut self, path: &Path) -> Option<String> {
        if let Some(text) = library::text(path) {
            return Some(text.to_owned());
        }
        match read_limited(path) {
            Ok(text) => {
                self.files.push(path.to_path_buf());
                Some(text)
            }
            Err(error) => {
                self.problems.push(unreadable(path, &error));
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
        let tree = self.parse(path.display().to_string(), text, false);
        let Some(entry) = tree.entry("extends").cloned() else {
            self.refuse_unset(&tree);
            return tree;
        };
        let Some(base) = entry.node.as_str() else {
            let message = "wrong type for extends: expected a path in quotes";
            self.add_problem(&entry.node.span, message, "this is not text", None);
            return tree;
        };
        let base_path = locate(path.parent().unwrap_or(Path::new("")), Path::new(base));
        above.push(canonical(path));
        let loops = above.contains(&canonical(&base_path));
        let refusal = if loops {
            Some(format!("`extends` leads back to {}", base_path.display()))
        } else if base_path.is_file() || library::text(&base_path).is_some() {
            None
        } else {
            Some(format!("`extends` names {}, which is not a file", base_path.display()))
        };
        if let Some(message) = refusal {
            let help = if loops { None } else { explain(Path::new(base)) };
            self.add_problem(&entry.node.span, message, "expected the path of another file", help);
            return tree;
        }
        let before = self.problems.len();
        let Some(mut merged) = self.read_file(&base_path, above) else {
            let message = self.problems.drain(before..).map(|p| p.to_string()).collect::<String>();
            self.add_problem(&entry.node.span, message, "named here", None);
            return tree;
        };
        if let Some(name) = merged.get("name").filter(|name| name.as_str().is_none()) {
            let message = "wrong type for name: expected text in quotes";
            self.add_problem(&name.span.clone(), message, "this is not text", None);
        }
        merged.take("name");
        merged.take("extends");
        self.change(&mut merged, &base_path.display().to_string(), tree);
        merged
    }

    /// Applies one `--set` to the tree.
    pub(crate) fn apply(&mut self, index: usize, change: &str, tree: &mut Node) {
        let node = self.parse(format!("--set #{}", index + 1), quote_if_needed(change), true);
        if let Some(entry) = node.entry("extends") {
            let help = "write it in the file";
            let message = "`extends` cannot be set";
            self.add_problem(&entry.span, message, "comes too late here", Some(help.into()));
        }
        if node.entries().is_empty() && self.broken.is_empty() {
            self.add_problem(&node.span, "expected KEY = VALUE", "nothing is set here", None);
        }
        self.change(tree, "the pipeline", node);
    }

    /// Applies a file or a `--set` to the tree that it changes.
    pub(crate) fn change(&mut self, base: &mut Node, name: &str, over: Node) {
        for ChangeFault { span, message, label, help } in change(base, name, over) {
            self.add_problem(&span, message, label, Some(help));
        }
    }

    /// Refuses keys that only a file that extends another may have.
    fn refuse_unset(&mut self, tree: &Node) {
        if let Some(entry) = tree.entry("unset") {
            let message = "`unset` removes parts of the file that `extends` names";
            let help = "write `extends = \"base.toml\"`, or leave out `unset`";
            self.add_problem(&entry.span, message, "nothing is extended here", Some(help.into()));
        }
    }

    /// Parses the text of a file or of a change, and records syntax errors.
    fn parse(&mut self, name: String, text: String, is_change: bool) -> Node {
        let source = self.sources.0.len();
        let (node, errors) = Node::parse(source, &text);
        self.sources.0.push(SourceText { name, text: text.into(), is_change });
        let syntax = describe_errors(&self.sources.0[source].text, &errors);
        for SyntaxProblem { range, message, help } in syntax {
            let span = TextSpan::new(source, range);
            let problem = Problem::new(&self.sources, &span, message, "here", help);
            self.broken.extend(problem.line());
            self.problems.push(problem.with_cause(Cause::Syntax));
        }
        node
    }

    pub(crate) fn add_problem(
        &mut self,
        span: &TextSpan,
        message: impl Into<String>,
        label: impl Into<String>,
        help: Option<String>,
    ) {
        self.problems.push(Problem::new(&self.sources, span, message, label, help));
    }

    /// Reads all parts of the tree.
    pub(crate) fn read_pipeline(&mut self, tree: &Node, path: &Path) -> PipelineConfig {
        self.refuse_unknown_keys(tree, &KEYS, "");
        let pipeline = self.read_settings(tree, path, "");
        let layers = self.read_layers(tree, path);
        // Problems within parts were reported, and they may be the cause of conflicts between
        // parts.
        if !self.problems.is_empty() {
            return pipeline;
        }
        let whole = PipelineConfig { layers, ..pipeline };
        self.record_conflicts(&whole, tree, &[], "");
        whole
    }

    /// Reads settings: those of a table under `[[layers]]`, or those of the file, which apply to
    /// all other layers. `within` precedes keys in messages.
    pub(crate) fn read_settings(
        &mut self,
        tree: &Node,
        path: &Path,
        within: &str,
    ) -> PipelineConfig {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let mut values = TreeReader { reader: self, tree, within };
        let name: Option<String> = values.read_name();
        let mut pipeline = PipelineConfig {
            name: name.or(stem).unwrap_or_default(),
            seed: values.read("seed").unwrap_or_default(),
            share: values.read("share").unwrap_or_default(),
            dense_layers: values.read_list("dense_layers"),
            sampler: values.read_table::<Box<dyn SamplerConfig>>(
                "sampler",
                ComponentKind::Sampler,
                Some("uniform"),
            ),
            estimator: values.read_table::<Box<dyn Estimator>>(
                "estimator",
                ComponentKind::Estimator,
                None,
            ),
            ..PipelineConfig::default()
        };
        let mut places = Vec::new();
        for (i, node) in self.read_tables(tree, "selectors").iter().enumerate() {
            let kind = Some(ComponentKind::Selector);
            let subject = Subject { what: &format!("{within}selectors[{i}]"), kind };
            if let Some(selector) = self.read_selector(node, subject) {
                pipeline.selectors.push(selector);
                places.push(node.get("type").unwrap_or(node).span.clone());
            }
        }
        match tree.get("estimator").filter(|_| pipeline.estimator.is_none()) {
            None => self.record_conflicts(&pipeline, tree, &places, within),
            // Other problems of an estimator that lacks `delta` are reported in the same run.
            Some(unread) => {
                if let Some(estimator) = read_without_delta(unread) {
                    pipeline.estimator = Some(estimator);
                    self.record_conflicts(&pipeline, tree, &places, within);
                    pipeline.estimator = None;
                } else {
                    let sampler = pipeline.sampler.take();
                    self.record_conflicts(&pipeline, tree, &places, within);
                    pipeline.sampler = sampler;
                }
            }
        }
        pipeline
    }

    /// Refuses keys that a table does not have. `within` precedes keys in messages.
    pub(crate) fn refuse_unknown_keys(&mut self, table: &Node, keys: &[&str], within: &str) {
        for TableEntry { key, span, .. } in table.entries() {
            if !keys.contains(&key.as_str()) {
                let place = if keys == KEYS { suggest_place(key) } else { None };
                let suggestion = place.or_else(|| suggest(key, keys));
                let help =
                    with_suggestion(suggestion, &format!("the keys here are {}", list(keys)));
                let message = format!("unknown key `{within}{key}`");
                let problem =
                    Problem::new(&self.sources, span, message, "not a key here", Some(help));
                self.problems.push(problem.with_cause(Cause::Structure));
            }
        }
    }

    /// Returns the tables under `[[key]]`.
    pub(crate) fn read_tables(&mut self, tree: &Node, key: &str) -> Vec<Node> {
        let Some(node) = tree.get(key) else { return Vec::new() };
        if let Value::Array(items) = &node.value {
            return items.clone();
        }
        let is_number = |entry: &TableEntry| entry.key.parse::<usize>().is_ok();
        let entries = node.entries();
        let numbered = !entries.is_empty() && entries.iter().all(is_number);
        let mut help = format!("write `[[{key}]]`, with double brackets, once for each table");
        if numbered {
            help.insert_str(0, "there is no list here whose elements could be changed by number; ");
        }
        let message = format!("`{key}` must be an array of tables");
        self.add_problem(&node.span, message, "this is not an array", Some(help));
        Vec::new()
    }

    /// Reads a component from its own table.
    fn read_component<T: DeserializeOwned>(
        &mut self,
        node: &Node,
        subject: Subject<'_>,
    ) -> Option<T> {
        if !matches!(node.value, Value::Table(_)) {
            let message = format!("wrong type for {}: expected a table", subject.what);
            let is_list = matches!(node.value, Value::Array(_));
            let label = if is_list { "this is a list" } else { "this is not a table" };
            self.add_problem(&node.span, message, label, as_table(node, subject));
            return None;
        }
        let (table, files) = resolve_files(node, &self.sources);
        for file in files {
            let Some(message) = file.check() else { continue };
            let problem =
                Problem::new(&self.sources, &file.span, message, "named here", file.advice);
            self.problems.push(problem.with_cause(Cause::File));
        }
        let faults = match read_all(&table) {
            Ok(component) => return Some(component),
            Err(faults) => faults,
        };
        let problems = faults.iter().map(|fault| subject.problem(&self.sources, node, fault));
        self.problems.extend(problems);
        None
    }

    /// Reads a selector, and checks its files.
    fn read_selector(
        &mut self,
        node: &Node,
        subject: Subject<'_>,
    ) -> Option<Box<dyn SelectorConfig>> {
        let before = self.problems.len();
        let selector: Box<dyn SelectorConfig> = self.read_component(node, subject)?;
        if self.problems.len() == before
            && let Err(error) = selector.check()
        {
            let (_, files) = resolve_files(node, &self.sources);
            let span = files.first().map_or(&node.span, |file| &file.span);
            self.add_problem(span, error.to_string(), "named here", None);
        }
        Some(selector)
    }

    /// Records conflicts between parts. `places` are the places of the selectors' types.
    fn record_conflicts(
        &mut self,
        pipeline: &PipelineConfig,
        tree: &Node,
        places: &[TextSpan],
        within: &str,
    ) {
        let index = |at: &str, key: &str| -> Option<usize> {
            at.strip_prefix(key)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
        };
        let layers = |index: usize| match &tree.get("layers")?.value {
            Value::Array(items) => Some(items.get(index)?.span.clone()),
            _ => None,
        };
        for Conflict { at, message, help } in pipeline.conflicts() {
            let span = match (index(&at, "selectors"), index(&at, "layers")) {
                (Some(index), _) => places.get(index).cloned(),
                (_, Some(index)) => layers(index),
                _ => tree.entry(&at).map(|entry| entry.span.clone()),
            };
            let span = span.unwrap_or_else(|| tree.span.clone());
            let message = match within.strip_suffix('.') {
                Some(within) => format!("at {within}, {message}"),
                None => message,
            };
            self.add_problem(&span, message, "this part", Some(help));
        }
    }

    /// Returns the problems in order, without those that a line with a syntax error may have
    /// caused.
    pub(crate) fn into_error(mut self) -> ConfigError {
        if !self.broken.is_empty() {
            let broken = self.broken;
            self.problems.retain(|problem| {
                let on_broken_line = problem.line().is_some_and(|line| broken.contains(&line));
                match problem.cause {
                    Cause::Syntax => true,
                    Cause::Structure => false,
                    Cause::Value | Cause::File => !on_broken_line,
                }
            });
        }
        self.problems.sort_by_key(|problem| problem.span().cloned());
        ConfigError { problems: self.problems }
    }
}

/// Reads values of a tree by their keys.
pub(crate) struct TreeReader<'a> {
    pub(crate) reader: &'a mut Reader,
    pub(crate) tree: &'a Node,
    /// Prefix of the keys in messages.
    pub(crate) within: &'a str,
}

impl TreeReader<'_> {
    /// Reads a plain value at the top of the tree.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let node = self.tree.get(key)?;
        let subject = Subject { what: &format!("{}{key}", self.within), kind: None };
        read(node)
            .map_err(|located| {
                let problem = subject.problem(&self.reader.sources, node, &located);
                self.reader.problems.push(problem);
            })
            .ok()
    }

    /// Reads the name, which must be one line.
    fn read_name(&mut self) -> Option<String> {
        let name: String = self.read("name")?;
        if name.is_empty() || name.contains(char::is_control) {
            let span = &self.tree.get("name")?.span;
            let message = "bad value for name: expected one line of text";
            self.reader.add_problem(span, message, "here", None);
        }
        Some(name)
    }

    /// Reads a list of plain values. Wrong ones are reported and left out.
    pub(crate) fn read_list<T: DeserializeOwned>(&mut self, key: &str) -> Vec<T> {
        let Some(Value::Array(items)) = self.tree.get(key).map(|node| &node.value) else {
            return self.read(key).unwrap_or_default();
        };
        let item = |(i, node): (usize, &Node)| {
            let subject = Subject { what: &format!("{}{key}[{i}]", self.within), kind: None };
            let note = |located| subject.problem(&self.reader.sources, node, &located);
            read(node).map_err(|located| self.reader.problems.push(note(located))).ok()
        };
        items.iter().enumerate().filter_map(item).collect()
    }

    /// Reads a component's table. Without a `type` the table is of the `default` type.
    fn read_table<T: DeserializeOwned>(
        &mut self,
        key: &str,
        kind: ComponentKind,
        default: Option<&str>,
    ) -> Option<T> {
        let node = self.tree.get(key)?;
        let node = &default.map_or_else(|| node.clone(), |default| node.with_type(default));
        let kind = Some(kind);
        self.reader.read_component(node, Subject { what: &format!("{}{key}", self.within), kind })
    }
}

/// Reads an estimator that lacks `delta`, with an arbitrary value for it.
fn read_without_delta(node: &Node) -> Option<Box<dyn Estimator>> {
    node.get("delta").is_none().then(|| read(&node.with("delta", Value::Float(0.5))).ok())?
}

/// Advice to write a component's table in place of a name or a list.
fn as_table(node: &Node, subject: Subject<'_>) -> Option<String> {
    let what = subject.what;
    match (&node.value, subject.kind) {
        (Value::Str(name), Some(ComponentKind::Selector)) => {
            Some(format!("write `[[selectors]]`, and under it `type = \"{name}\"`"))
        }
        (Value::Str(name), Some(ComponentKind::Sampler | ComponentKind::Estimator)) => {
            Some(format!("write `[{what}]`, and under it `type = \"{name}\"`"))
        }
        (Value::Array(_), None | Some(ComponentKind::Sampler | ComponentKind::Estimator)) => {
            Some(format!("write `[{what}]`, in single brackets, and only once"))
        }
        _ => None,
    }
}

/// Problem of a file that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> Problem {
    let message = format!("{}: cannot be read: {error}", path.display());
    let problem = Problem::of_file(message);
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    match explain(path).filter(|_| missing) {
        Some(help) => problem.with_help(&help),
        None => problem,
    }
}

/// Reads the text of a file of limited size.
fn read_limited(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let reason = format!("expected at most {MAX_FILE_BYTES} bytes for a pipeline file");
        return Err(std::io::Error::other(reason));
    }
    Ok(text)
}

/// Quotes the value of a change, unless it is a TOML value or looks like a malformed number.
fn quote_if_needed(change: &str) -> String {
    match change.split_once('=') {
        Some((key, value)) if is_text(value.trim()) => format!("{key}= \"{}\"", value.trim()),
        _ => change.to_owned(),
    }
}

/// Returns true if a value is a text whose quotes the shell removed. Dates are texts, as no field
/// accepts a date.
fn is_text(value: &str) -> bool {
    let is_list = value.starts_with(['[', '{']);
    let is_number = !value.starts_with(char::is_alphabetic) && value.parse::<f64>().is_ok();
    if value.is_empty() || is_list || is_number || value.contains(['"', '\'', '\n', '\\']) {
        return false;
    }
    let (table, errors) = Node::parse(0, &format!("value = {value}"));
    let read = table.get("value").map(|node| &node.value);
    !errors.is_empty() || matches!(read, None | Some(Value::Other(DATE)))
}

/// Canonical form of a path, if the file exists, for comparisons.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}
