//! Pipeline files with the changes of `--set`, and the files that are left out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use vattention::PipelineConfig;
use vattention::config::{ConfigError, Loader, Problem};
use vattention::experiments::Entry;

use super::lineup::{LeftOutPipeline, Lineup, note_left_out, reasons};
use crate::fail::Failure;

/// Changes to pipelines.
#[derive(Debug, clap::Args)]
pub(crate) struct Changes {
    /// Change a setting of each pipeline, such as estimator.epsilon=0.1 or selectors.0.size=64. Of
    /// several pipelines, those that cannot take the change are left out.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// Pipelines, and the files that were read for them.
pub(crate) struct LoadedPipelines {
    pub(crate) lineup: Lineup<Entry>,
    pub(crate) files: Vec<PathBuf>,
}

/// A pipeline and its files, or all problems of these files.
type ParseResult = Result<(Arc<PipelineConfig>, Vec<PathBuf>), ConfigError>;

/// Pipeline files that were read, and those that were refused.
#[derive(Default)]
struct PipelineReading {
    entries: Vec<Entry>,
    files: Vec<PathBuf>,
    refused: Vec<RefusedFile>,
}

/// A pipeline file that cannot be used.
struct RefusedFile {
    name: String,
    file: String,
    error: ConfigError,
    reason: Refusal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The file has an error of its own.
    Wrong,
    /// A file that the pipeline names cannot be read.
    File,
    /// The pipeline cannot take the changes.
    Change,
}

impl Changes {
    /// Loads pipelines, and leaves out those that cannot take the changes or whose files are
    /// missing.
    ///
    /// # Errors
    /// If a file has an error of its own, or if all pipelines are left out.
    pub(crate) fn load(&self, paths: &[PathBuf]) -> Result<LoadedPipelines, Failure> {
        self.read_files(paths).leave_out()
    }

    /// Loads pipelines; an error in any of them is an error.
    pub(crate) fn load_all(&self, paths: &[PathBuf]) -> Result<Vec<Entry>, Failure> {
        Ok(self.read_files(paths).expect_all()?.0)
    }

    /// Loads one pipeline, and returns the files that were read for it.
    pub(crate) fn load_one(&self, path: &Path) -> Result<(Entry, Vec<PathBuf>), Failure> {
        let (mut entries, files) = self.read_files(&[path.to_path_buf()]).expect_all()?;
        Ok((entries.pop().expect("a pipeline for the path"), files))
    }

    /// Parses texts with their names, and leaves out those that cannot take the changes.
    pub(crate) fn parse(&self, texts: &[(String, String)]) -> Result<LoadedPipelines, Failure> {
        let mut reading = PipelineReading::default();
        for (name, text) in texts {
            let parse = |loader: &Loader| Ok((loader.parse(name, text)?, Vec::new()));
            reading.add(name.clone(), &self.set, parse);
        }
        reading.leave_out()
    }

    fn read_files(&self, paths: &[PathBuf]) -> PipelineReading {
        let mut reading = PipelineReading::default();
        for path in paths {
            let load = |loader: &Loader| loader.load_with_files(path);
            reading.add(path.display().to_string(), &self.set, load);
        }
        reading
    }
}

impl PipelineReading {
    fn add(&mut self, file: String, set: &[String], load: impl Fn(&Loader) -> ParseResult) {
        match load(&Loader { set: set.to_vec() }) {
            Ok((pipeline, files)) => {
                self.entries.push(Entry { pipeline, file, set: None });
                self.files.extend(files);
            }
            Err(error) => {
                let unchanged = (!set.is_empty()).then(|| load(&Loader::default()));
                self.refused.push(RefusedFile::new(file, error, unchanged));
            }
        }
    }

    fn expect_all(self) -> Result<(Vec<Entry>, Vec<PathBuf>), Failure> {
        if self.refused.is_empty() {
            return Ok((self.entries, self.files));
        }
        Err(Failure::Config(vec![ConfigError { problems: problems(self.refused) }]))
    }

    fn leave_out(self) -> Result<LoadedPipelines, Failure> {
        let is_wrong = self.refused.iter().any(|refused| refused.reason == Refusal::Wrong);
        if is_wrong || self.entries.is_empty() {
            let (run, files) = self.expect_all()?;
            return Ok(LoadedPipelines { lineup: Lineup { run, left_out: Vec::new() }, files });
        }
        let left_out: Vec<LeftOutPipeline> =
            self.refused.into_iter().map(RefusedFile::leave_out).collect();
        note_left_out(&reasons(&left_out));
        Ok(LoadedPipelines { lineup: Lineup { run: self.entries, left_out }, files: self.files })
    }
}

impl RefusedFile {
    /// Returns a file with its problems; `unchanged` is the result of loading it without changes.
    fn new(file: String, error: ConfigError, unchanged: Option<ParseResult>) -> Self {
        let stem = Path::new(&file).file_stem().unwrap_or_default();
        let name = match &unchanged {
            Some(Ok((pipeline, _))) => pipeline.name.clone(),
            _ => stem.to_string_lossy().into_owned(),
        };
        let reason = match unchanged {
            _ if error.is_unreadable_file() => Refusal::File,
            Some(Ok(_)) => Refusal::Change,
            Some(Err(own)) if own.is_unreadable_file() => Refusal::Change,
            _ => Refusal::Wrong,
        };
        Self { name, file, error, reason }
    }

    fn leave_out(self) -> LeftOutPipeline {
        let reason = if self.reason == Refusal::Change {
            let messages = self.error.problems.iter().map(Problem::message);
            format!("--set: {}", messages.collect::<Vec<_>>().join("; "))
        } else {
            self.error.summary()
        };
        LeftOutPipeline { name: self.name, file: self.file, reason }
    }
}

/// Maximum number of files that a message names; further files are counted.
const NAMED: usize = 3;

/// Returns the problems of all files. A problem that a change causes in several files is listed
/// once, with the names of these files.
fn problems(refused: Vec<RefusedFile>) -> Vec<Problem> {
    let mut listed: Vec<(Problem, Vec<String>)> = Vec::new();
    for RefusedFile { file, error, .. } in refused {
        for problem in error.problems {
            let matches = |(other, _): &&mut (Problem, Vec<String>)| is_same(other, &problem);
            match listed.iter_mut().find(matches) {
                Some((_, files)) => files.push(file.clone()),
                None => listed.push((problem, vec![file.clone()])),
            }
        }
    }
    listed.into_iter().map(|(problem, files)| name_files(problem, &files)).collect()
}

fn is_same(a: &Problem, b: &Problem) -> bool {
    (a.message(), a.help(), a.place()) == (b.message(), b.help(), b.place())
}

/// Adds the names of the files to a problem in a change.
fn name_files(problem: Problem, files: &[String]) -> Problem {
    let place = problem.place().map(|(name, ..)| name);
    if place.is_none_or(|name| !name.starts_with("--set #")) {
        return problem;
    }
    let named = files[..files.len().min(NAMED)].join(", ");
    match files.len().saturating_sub(NAMED) {
        0 => problem.set_on(&named),
        1 => problem.set_on(&format!("{named} and another file")),
        more => problem.set_on(&format!("{named} and {more} more files")),
    }
}
