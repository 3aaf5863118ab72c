//! Parameter grids: pipelines with all combinations of some values, which `vattention tune` tries.
//!
//! ```toml
//! base = "../configs/quest.toml"   # relative to this file
//! search = true                    # search the sizes for each requested density
//!
//! [grid]
//! selectors.0.size = [4, 16]
//! selectors.2 = [{ page = 8, bits = 4 }, { page = 16, bits = 8 }]   # keys that change together
//! ```
//!
//! Each key under `[grid]` is one that `--set` accepts, and has a list of values. A value changes
//! the base in the same way as a file that extends it. All combinations are tried, or `samples`
//! random ones, drawn by `seed`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vattention_core::{PipelineConfig, Shape, Site, step::Stream};

use crate::library::{locate, text};
use crate::node::{Node, TableEntry, TextSpan, Value};
use crate::problem::{ConfigError, Problem};
use crate::reader::{Reader, TreeReader};

/// Keys of a grid file.
const KEYS: [&str; 6] = ["name", "base", "search", "samples", "seed", "grid"];

/// Largest number of combinations.
const MOST: u64 = 4096;

/// Pipelines of one method.
#[derive(Clone, Debug)]
pub struct ParameterGrid {
    /// Name of the method: the `name` in the file, or else that of the base.
    pub name: String,
    /// Path of the grid file, as given.
    pub file: PathBuf,
    /// True if the sizes of each pipeline are searched for each density; false if they are fixed.
    pub search: bool,
    /// Combinations to try, in the order of the lists; the last key varies fastest.
    pub combinations: Vec<GridPoint>,
    /// Files that were read.
    pub files: Vec<PathBuf>,
}

/// A pipeline of a grid.
#[derive(Clone, Debug)]
pub struct GridPoint {
    /// Keys of the grid with their values, as TOML, in the order of the file.
    pub settings: Vec<(String, String)>,
    /// The base with these settings.
    pub pipeline: Arc<PipelineConfig>,
}

/// A key and its values.
struct GridAxis {
    path: Vec<(String, TextSpan)>,
    values: Vec<Node>,
}

impl ParameterGrid {
    /// Loads a grid file.
    ///
    /// # Errors
    /// All problems in the file, such as unknown keys, missing values, too many combinations, and
    /// invalid combinations.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let mut reader = Reader::default();
        let read = reader.read_alone(path).map(|tree| reader.read_grid(&tree, path));
        match read.flatten() {
            Some(grid) if reader.problems.is_empty() => Ok(grid),
            _ => Err(reader.into_error()),
        }
    }
}

impl Reader {
    fn read_grid(&mut self, tree: &Node, path: &Path) -> Option<ParameterGrid> {
        self.refuse_unknown_keys(tree, &KEYS, "");
        let mut values = TreeReader { reader: self, tree, within: "" };
        let name: Option<String> = values.read("name");
        let search = values.read("search").unwrap_or(false);
        let samples: Option<u64> = values.read("samples");
        let seed = values.read("seed").unwrap_or(0);
        let base_path = self.find_base(tree, path)?;
        let axes = self.read_axes(tree);
        let chosen = self.choose(tree, &axes, samples, seed);
        let base = self.read_file(&base_path, &mut Vec::new())?;
        if !self.problems.is_empty() {
            return None;
        }
        let combinations = self.build_combinations(&base, &base_path, &axes, &chosen);
        let name = name.or_else(|| Some(combinations.first()?.pipeline.name.clone()))?;
        let files = std::mem::take(&mut self.files);
        Some(ParameterGrid { name, file: path.into(), search, combinations, files })
    }

    /// Returns the path of the file that `base` names.
    fn find_base(&mut self, tree: &Node, path: &Path) -> Option<PathBuf> {
        let Some(node) = tree.get("base") else {
            let help = "for instance, `base = \"quest.toml\"`, relative to this file";
            self.add_problem(
                &tree.span,
                "missing `base`: the pipeline file that is varied",
                "",
                Some(help.into()),
            );
            return None;
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let base = node.as_str().map(|base| locate(folder, Path::new(base)));
        let message = match &base {
            Some(base) if base.is_file() || text(base).is_some() => return Some(base.clone()),
            Some(base) => format!("`base` names {}, which is not a file", base.display()),
            None => "wrong type for base: expected a path in quotes".into(),
        };
        self.add_problem(&node.span, message, "expected the path of a pipeline file", None);
        None
    }

    /// Returns the keys under `[grid]`, each with its values.
    fn read_axes(&mut self, tree: &Node) -> Vec<GridAxis> {
        let mut axes = Vec::new();
        let before = self.problems.len();
        if let Some(grid) = tree.get("grid") {
            self.add_axes(grid, &mut Vec::new(), &mut axes);
        }
        if axes.is_empty() && self.problems.len() == before {
            let span = tree.get("grid").map_or(&tree.span, |grid| &grid.span);
            let help = "write `[grid]`, and under it keys with lists, such as \
                        `selectors.2.page = [8, 16]`";
            self.add_problem(span, "there is nothing to try", "", Some(help.into()));
        }
        axes
    }

    fn add_axes(
        &mut self,
        node: &Node,
        path: &mut Vec<(String, TextSpan)>,
        axes: &mut Vec<GridAxis>,
    ) {
        let name = || path.iter().map(|(key, _)| &key[..]).collect::<Vec<_>>().join(".");
        match &node.value {
            Value::Table(entries) => {
                for TableEntry { key, span, node } in entries {
                    if path.is_empty() && key == "extends" {
                        let help = "name the file as `base`, or write a grid for each".into();
                        self.add_problem(span, "`extends` cannot be varied", "here", Some(help));
                        continue;
                    }
                    path.push((key.clone(), span.clone()));
                    self.add_axes(node, path, axes);
                    path.pop();
                }
            }
            Value::Array(values) if values.is_empty() => {
                let message = format!("`{}` has no values", name());
                self.add_problem(&node.span, message, "expected at least one", None);
            }
            Value::Array(values) => {
                axes.push(GridAxis { path: path.clone(), values: values.clone() });
            }
            _ => {
                let message = format!("wrong type for {}: expected a list of values", name());
                let help = "a key with one value is a list, too: `[16]`".into();
                self.add_problem(&node.span, message, "this is not a list", Some(help));
            }
        }
    }

    /// Chooses the combinations to try, and returns their numbers, ascending.
    fn choose(
        &mut self,
        tree: &Node,
        axes: &[GridAxis],
        samples: Option<u64>,
        seed: u64,
    ) -> Vec<u64> {
        let count = |axis: &GridAxis| axis.values.len() as u64;
        let all = axes.iter().try_fold(1_u64, |all, axis| all.checked_mul(count(axis)));
        let count = samples.or(all).unwrap_or(u64::MAX);
        if count == 0 || count > MOST {
            let node = tree.get("samples").or(tree.get("grid")).unwrap_or(tree);
            let found = all.map_or("more than 2^64".into(), |all| all.to_string());
            let message = match samples {
                Some(samples) => format!("bad value for samples: {samples}, expected 1 to {MOST}"),
                None => format!("the grid has {found} combinations, at most {MOST} can be tried"),
            };
            let help = samples
                .is_none()
                .then(|| "write `samples = 200` above `[grid]` to try 200 random ones".into());
            self.add_problem(&node.span.clone(), message, "here", help);
            return Vec::new();
        }
        match all {
            Some(all) if all <= count => (0..all).collect(),
            all => draw(all.unwrap_or(u64::MAX), count, seed),
        }
    }

    /// Builds the pipelines of the chosen combinations, and records the problems of invalid ones.
    fn build_combinations(
        &mut self,
        base: &Node,
        base_path: &Path,
        axes: &[GridAxis],
        chosen: &[u64],
    ) -> Vec<GridPoint> {
        let mut points = Vec::new();
        let mut found: Vec<CommonProblem> = Vec::new();
        for &number in chosen {
            let values = values(axes, number);
            let mut tree = base.clone();
            for (axis, value) in axes.iter().zip(&values) {
                self.change(&mut tree, &base_path.display().to_string(), axis.set(value));
            }
            let pipeline = self.read_pipeline(&tree, base_path);
            let settings: Vec<_> =
                axes.iter().zip(&values).flat_map(|(axis, value)| axis.settings(value)).collect();
            let combination = || {
                let settings = settings.iter().map(|(key, value)| format!("{key} = {value}"));
                settings.collect::<Vec<_>>().join(", ")
            };
            for problem in self.problems.drain(..) {
                match found.iter_mut().find(|other| other.equals(&problem)) {
                    Some(other) => other.times += 1,
                    None => found.push(CommonProblem { problem, first: combination(), times: 1 }),
                }
            }
            points.push(GridPoint { settings, pipeline: Arc::new(pipeline) });
        }
        // A problem that all combinations have is reported without naming one of them.
        let problem = |CommonProblem { problem, first, times }| {
            if times == chosen.len() {
                problem
            } else {
                problem.with_help(&format!("first in the combination {first}"))
            }
        };
        self.problems = found.into_iter().map(problem).collect();
        points
    }
}

/// A problem of some combinations.
struct CommonProblem {
    problem: Problem,
    /// Settings of the first combination with the problem.
    first: String,
    /// Number of combinations with the problem.
    times: usize,
}

impl CommonProblem {
    fn equals(&self, other: &Problem) -> bool {
        (self.problem.message(), self.problem.span()) == (other.message(), other.span())
    }
}

impl GridAxis {
    /// Returns the change that sets the key to a value.
    fn set(&self, value: &Node) -> Node {
        let wrap = |node: Node, (key, span): &(String, TextSpan)| {
            let entry = TableEntry { key: key.clone(), span: span.clone(), node };
            Node { span: span.clone(), value: Value::Table(vec![entry]) }
        };
        self.path.iter().rev().fold(value.clone(), wrap)
    }

    /// Returns the key and a value as text. A table results in one pair for each of its keys.
    fn settings(&self, value: &Node) -> Vec<(String, String)> {
        let path: Vec<&str> = self.path.iter().map(|(key, _)| &key[..]).collect();
        let mut settings = Vec::new();
        add_settings(&path.join("."), value, &mut settings);
        settings
    }
}

fn add_settings(key: &str, value: &Node, settings: &mut Vec<(String, String)>) {
    match &value.value {
        Value::Table(entries) if !entries.is_empty() => {
            for entry in entries {
                add_settings(&format!("{key}.{}", entry.key), &entry.node, settings);
            }
        }
        _ => settings.push((key.into(), format_value(value))),
    }
}

/// Formats a value as TOML, text without quotes.
fn format_value(node: &Node) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match &node.value {
        Value::Bool(x) => x.to_string(),
        Value::Int(x) => x.to_string(),
        Value::Large(x) => x.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Str(x) => x.clone(),
        Value::Other(what) => (*what).into(),
        Value::Array(items) => format!("[{}]", list(items.iter().map(format_value).collect())),
        Value::Table(entries) => {
            let entry =
                |entry: &TableEntry| format!("{} = {}", entry.key, format_value(&entry.node));
            format!("{{ {} }}", list(entries.iter().map(entry).collect()))
        }
    }
}

/// Returns the values of a combination.
fn values(axes: &[GridAxis], number: u64) -> Vec<&Node> {
    let mut rest = number;
    let mut value = |axis: &GridAxis| {
        let count = axis.values.len() as u64;
        let index = rest % count;
        rest /= count;
        index as usize
    };
    let indices: Vec<usize> = axes.iter().rev().map(&mut value).collect();
    axes.iter().zip(indices.into_iter().rev()).map(|(axis, index)| &axis.values[index]).collect()
}

/// Draws `count` different numbers below `all`, ascending; `all` is larger than `count`.
fn draw(all: u64, count: u64, seed: u64) -> Vec<u64> {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let site = Site { seed, sequence: 0, layer: 0, kv_head: 0, shape };
    let mut words = Stream::new(&site, 0, 0, 0).words().map(u64::from);
    let mut next = |below: u64| {
        let (high, low) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        ((high << 32) | low) % below
    };
    // Floyd's algorithm: all subsets of this size are equally probable.
    let mut drawn = BTreeSet::new();
    for last in all - count..all {
        let number = next(last.saturating_add(1));
        if !drawn.insert(number) {
            drawn.insert(last);
        }
    }
    drawn.into_iter().collect()
}
