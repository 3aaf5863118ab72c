//! Datasets of published benchmarks, read from files that users have.

mod babilong;
mod definition;
mod fit;
mod infinitebench;
mod longbench;
mod longbench_v2;
mod loogle;
mod math;
mod rows;
mod ruler;
mod zero_scrolls;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use crate::fit::TokenLimit;
use crate::metrics::AnswerMetric;
use crate::{Case, Error, Result};

use definition::{BenchmarkDefinition, PromptLayout, ScoredPart};
use rows::DatasetRow;

/// Dataset of a benchmark, or one group of its lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dataset(usize);

static ALL: LazyLock<Vec<BenchmarkDefinition>> = LazyLock::new(|| {
    [
        longbench::datasets(),
        longbench_v2::datasets(),
        ruler::datasets(),
        babilong::datasets(),
        loogle::datasets(),
        infinitebench::datasets(),
        zero_scrolls::datasets(),
        math::datasets(),
    ]
    .into_iter()
    .flatten()
    .collect()
});

impl Dataset {
    fn definition(self) -> &'static BenchmarkDefinition {
        &ALL[self.0]
    }

    /// Name of the dataset, with its group of lengths if it has several.
    pub fn name(self) -> &'static str {
        &self.definition().name
    }

    /// Metric of the dataset's answers.
    pub fn metric(self) -> AnswerMetric {
        self.definition().metric
    }

    /// Returns true if a chat model should receive the prompt as a chat.
    pub fn as_chat(self) -> bool {
        self.definition().as_chat
    }

    pub(crate) fn score(self, case: &Case, answer: &str) -> f64 {
        self.metric().score(case, self.scored_part(answer))
    }

    pub(crate) fn other_scores(self, case: &Case, answer: &str) -> Vec<(AnswerMetric, f64)> {
        let others = self.definition().others.iter();
        others.map(|metric| (*metric, metric.score(case, self.scored_part(answer)))).collect()
    }

    fn scored_part(self, answer: &str) -> &str {
        match self.definition().counted {
            ScoredPart::AllOrNone if answer.is_empty() => "None",
            ScoredPart::All | ScoredPart::AllOrNone => answer,
            ScoredPart::FirstLine => {
                answer.trim_start_matches('\n').split('\n').next().unwrap_or_default()
            }
        }
    }
}

/// Case whose context other cases may share: books and articles have many questions.
#[derive(Clone, Debug)]
struct StoredCase {
    context: Arc<str>,
    rest: Case,
}

/// Cases of a benchmark, read from files.
#[derive(Clone, Debug)]
pub struct Benchmark {
    cases: BTreeMap<Dataset, Vec<StoredCase>>,
    files: Vec<PathBuf>,
}

impl Benchmark {
    /// Returns the names of all benchmarks.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = ALL.iter().map(|definition| definition.benchmark).collect();
        names.dedup();
        names
    }

    /// Reads a benchmark's datasets from a folder: those in `datasets`, or if there are none, all
    /// whose files exist. Every line is checked.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a name that the benchmark lacks; [`Error::File`], and
    /// [`Error::Malformed`] with every wrong line; [`Error::NoFile`] if no file exists.
    pub fn open(name: &str, dir: &Path, datasets: &[String]) -> Result<Self> {
        let candidates: Vec<(Dataset, &BenchmarkDefinition)> = (0..)
            .map(Dataset)
            .zip(ALL.iter())
            .filter(|(_, definition)| definition.benchmark == name)
            .collect();
        if candidates.is_empty() {
            return Err(unknown(name, Self::names()));
        }
        let mut known: Vec<&str> = candidates.iter().map(|(_, it)| it.dataset.as_str()).collect();
        known.dedup();
        if let Some(other) = datasets.iter().find(|name| !known.contains(&name.as_str())) {
            longbench::refuse_chinese(name, other, dir)?;
            return Err(unknown(other, known));
        }
        let (mut cases, mut files) = (BTreeMap::new(), Vec::new());
        for in_file in candidates.chunk_by(|a, b| a.1.dataset == b.1.dataset) {
            let (_, first) = in_file[0];
            let requested = datasets.contains(&first.dataset);
            if !datasets.is_empty() && !requested {
                continue;
            }
            match find(dir, &first.files) {
                Some(path) => {
                    cases.extend(read(&path, in_file)?);
                    files.push(path);
                }
                None if requested => return Err(no_file(dir, &first.files)),
                None => {}
            }
        }
        if cases.is_empty() {
            let files: Vec<_> = candidates.iter().map(|(_, it)| it.files[0].clone()).collect();
            return Err(no_file(dir, &files));
        }
        Ok(Self { cases, files })
    }

    /// Files that were read.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Datasets that have cases.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = Dataset> {
        self.cases.keys().copied()
    }

    /// Number of cases of a dataset.
    pub(crate) fn cases(&self, dataset: Dataset) -> usize {
        self.cases.get(&dataset).map_or(0, Vec::len)
    }

    /// Returns the case at a place in the file, modulo the number of cases, fitted into the limit.
    pub(crate) fn case(
        &self,
        dataset: Dataset,
        place: u64,
        length: TokenLimit<'_>,
    ) -> Result<Case> {
        let task = dataset.name();
        let cases = self.cases.get(&dataset).filter(|cases| !cases.is_empty());
        let cases = cases.ok_or(Error::MissingUnit { task, what: "rows of a benchmark" })?;
        let StoredCase { context, rest } = &cases[(place % cases.len() as u64) as usize];
        let case = Case { context: context.to_string(), ..rest.clone() };
        fit::fit(case, dataset.definition().fit, task, length)
    }
}

/// Reads the cases of a file for all of its groups; omits groups without cases.
fn read(
    path: &Path,
    in_file: &[(Dataset, &'static BenchmarkDefinition)],
) -> Result<impl Iterator<Item = (Dataset, Vec<StoredCase>)>> {
    let mut contexts = HashSet::<Arc<str>>::new();
    let mut groups: Vec<_> = in_file.iter().map(|(dataset, _)| (*dataset, Vec::new())).collect();
    let rows = rows::parse(path, |row| {
        let group = in_file.iter().map(|(_, definition)| definition.has(row));
        let group = group.collect::<Result<Vec<bool>, String>>()?.iter().position(|has| *has);
        let group = group.ok_or("its length is in no group")?;
        let cases = cases(in_file[group].1, row)?.into_iter();
        Ok((group, cases.map(|case| share_context(case, &mut contexts)).collect::<Vec<_>>()))
    })?;
    for (group, cases) in rows {
        let (dataset, found) = &mut groups[group];
        match dataset.definition().layout {
            PromptLayout::ZeroScrolls => cases.into_iter().for_each(|case| add(case, found)),
            _ => found.extend(cases),
        }
    }
    Ok(groups.into_iter().filter(|(_, cases)| !cases.is_empty()))
}

/// Adds a case, or its right answers if there is a case with the same prompt.
fn add(case: StoredCase, cases: &mut Vec<StoredCase>) {
    let same = cases.iter_mut().find(|other| {
        Arc::ptr_eq(&other.context, &case.context) && other.rest.question == case.rest.question
    });
    match same {
        Some(other) => other.rest.answers.extend(case.rest.answers),
        None => cases.push(case),
    }
}

/// Stores a case so that it shares its context with earlier cases of the same context.
fn share_context(mut case: Case, contexts: &mut HashSet<Arc<str>>) -> StoredCase {
    let context = std::mem::take(&mut case.context);
    let known = contexts.get(context.as_str()).cloned();
    let context = known.unwrap_or_else(|| {
        let context: Arc<str> = context.into();
        contexts.insert(context.clone());
        context
    });
    StoredCase { context, rest: case }
}

/// Returns the cases of a row.
fn cases(definition: &BenchmarkDefinition, row: &DatasetRow) -> Result<Vec<Case>, String> {
    let BenchmarkDefinition { layout, metric, tokens, .. } = definition;
    let cases = match layout {
        PromptLayout::LongBench { prompt, classes } => {
            vec![longbench::case(prompt, *classes, row)?]
        }
        PromptLayout::Babilong { prompt, labels } => vec![babilong::case(prompt, labels, row)?],
        PromptLayout::Loogle { prompt, task } => loogle::cases(prompt, *task, row)?,
        PromptLayout::InfiniteBench { prompt } => vec![infinitebench::case(prompt, *metric, row)?],
        PromptLayout::LongBenchV2 { prompt } => vec![longbench_v2::case(prompt, row)?],
        PromptLayout::Ruler => vec![ruler::case(row)?],
        PromptLayout::ZeroScrolls => vec![zero_scrolls::case(*metric, row)?],
        PromptLayout::Math => vec![math::case(row)?],
    };
    Ok(cases.into_iter().map(|case| Case { tokens: *tokens, ..case }).collect())
}

fn find(dir: &Path, files: &[String]) -> Option<PathBuf> {
    files
        .iter()
        .flat_map(|file| rows::ENDS.iter().map(move |end| dir.join(format!("{file}{end}"))))
        .find(|path| path.is_file())
}

fn no_file(dir: &Path, files: &[String]) -> Error {
    let mut files: Vec<_> = files.iter().map(|file| format!("{file}.jsonl")).collect();
    files.dedup();
    Error::NoFile { dir: dir.into(), expected: files.join(" or ") }
}

fn unknown(name: &str, known: Vec<&str>) -> Error {
    Error::Unknown { name: name.into(), known: known.join(", ") }
}
