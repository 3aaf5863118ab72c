//! Datasets of published benchmarks, from the files that users have.

mod babilong;
mod definition;
mod fit;
mod infinitebench;
mod longbench;
mod loogle;
mod math;
mod rows;
mod ruler;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use crate::fit::TokenLimit;
use crate::metrics::AnswerMetric;
use crate::{Case, Error, Result};

use definition::{Definition, PromptLayout, ScoredPart};
use rows::DatasetRow;

/// One dataset of a benchmark, or one group of its lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dataset(usize);

static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    [
        longbench::datasets(),
        ruler::datasets(),
        babilong::datasets(),
        loogle::datasets(),
        infinitebench::datasets(),
        math::datasets(),
    ]
    .into_iter()
    .flatten()
    .collect()
});

impl Dataset {
    fn definition(self) -> &'static Definition {
        &ALL[self.0]
    }

    /// Of the dataset and the group of lengths, if it is one of several.
    pub fn name(self) -> &'static str {
        &self.definition().name
    }

    /// How its answers are scored.
    pub fn metric(self) -> AnswerMetric {
        self.definition().metric
    }

    /// Whether it is put to a chat model as a chat.
    pub fn as_chat(self) -> bool {
        self.definition().as_chat
    }

    pub(crate) fn score(self, case: &Case, answer: &str) -> f64 {
        self.metric().score(case, self.counted(answer))
    }

    pub(crate) fn other_scores(self, case: &Case, answer: &str) -> Vec<(AnswerMetric, f64)> {
        let others = self.definition().others.iter();
        others.map(|metric| (*metric, metric.score(case, self.counted(answer)))).collect()
    }

    fn counted(self, answer: &str) -> &str {
        match self.definition().counted {
            ScoredPart::AllOrNone if answer.is_empty() => "None",
            ScoredPart::All | ScoredPart::AllOrNone => answer,
            ScoredPart::FirstLine => {
                answer.trim_start_matches('\n').split('\n').next().unwrap_or_default()
            }
        }
    }
}

/// A case, whose context others may have, too: books and articles are asked about many times.
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
    /// The names of the benchmarks.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = ALL.iter().map(|one| one.benchmark).collect();
        names.dedup();
        names
    }

    /// Reads a benchmark's datasets from a folder: those of some names, or all whose files are there.
    /// Every line is checked.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a name that the benchmark lacks; [`Error::File`] and
    /// [`Error::Malformed`] with every line that is wrong; [`Error::NoFile`] if there is none.
    pub fn open(name: &str, dir: &Path, datasets: &[String]) -> Result<Self> {
        let own: Vec<(Dataset, &Definition)> = (0..)
            .map(Dataset)
            .zip(ALL.iter())
            .filter(|(_, definition)| definition.benchmark == name)
            .collect();
        if own.is_empty() {
            return Err(unknown(name, Self::names()));
        }
        let mut known: Vec<&str> = own.iter().map(|(_, it)| it.dataset.as_str()).collect();
        known.dedup();
        if let Some(other) = datasets.iter().find(|name| !known.contains(&name.as_str())) {
            longbench::refuse_chinese(name, other, dir)?;
            return Err(unknown(other, known));
        }
        let (mut cases, mut files) = (BTreeMap::new(), Vec::new());
        for of_file in own.chunk_by(|a, b| a.1.dataset == b.1.dataset) {
            let (_, first) = of_file[0];
            let asked = datasets.contains(&first.dataset);
            if !datasets.is_empty() && !asked {
                continue;
            }
            match find(dir, &first.files) {
                Some(path) => {
                    cases.extend(read(&path, of_file)?);
                    files.push(path);
                }
                None if asked => return Err(no_file(dir, &first.files)),
                None => {}
            }
        }
        if cases.is_empty() {
            let files: Vec<_> = own.iter().map(|(_, it)| it.files[0].clone()).collect();
            return Err(no_file(dir, &files));
        }
        Ok(Self { cases, files })
    }

    /// The files that were read.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The datasets that there are cases of.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = Dataset> {
        self.cases.keys().copied()
    }

    /// How many cases a dataset has.
    pub(crate) fn cases(&self, dataset: Dataset) -> usize {
        self.cases.get(&dataset).map_or(0, Vec::len)
    }

    /// A case by its place in the file, and again from the first behind the last, made to fit.
    pub(crate) fn case(
        &self,
        dataset: Dataset,
        place: u64,
        length: TokenLimit<'_>,
    ) -> Result<Case> {
        let task = dataset.name();
        let cases = self.cases.get(&dataset).filter(|cases| !cases.is_empty());
        let cases = cases.ok_or(Error::Missing { task, what: "rows of a benchmark" })?;
        let StoredCase { context, rest } = &cases[(place % cases.len() as u64) as usize];
        let case = Case { context: context.to_string(), ..rest.clone() };
        fit::fit(case, dataset.definition().fit, task, length)
    }
}

/// The cases of a file that several groups share; groups without one are left out.
fn read(
    path: &Path,
    of_file: &[(Dataset, &'static Definition)],
) -> Result<impl Iterator<Item = (Dataset, Vec<StoredCase>)>> {
    let mut contexts = HashSet::<Arc<str>>::new();
    let mut groups: Vec<_> = of_file.iter().map(|(dataset, _)| (*dataset, Vec::new())).collect();
    let rows = rows::parse(path, |row| {
        let group = of_file.iter().map(|(_, definition)| definition.has(row));
        let group = group.collect::<Result<Vec<bool>, String>>()?.iter().position(|has| *has);
        let group = group.ok_or("its length is in no group")?;
        let cases = cases(of_file[group].1, row)?.into_iter();
        Ok((group, cases.map(|case| stored(case, &mut contexts)).collect::<Vec<_>>()))
    })?;
    for (group, cases) in rows {
        groups[group].1.extend(cases);
    }
    Ok(groups.into_iter().filter(|(_, cases)| !cases.is_empty()))
}

/// A case that shares its context with those before that have the same.
fn stored(mut case: Case, contexts: &mut HashSet<Arc<str>>) -> StoredCase {
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
fn cases(definition: &Definition, row: &DatasetRow) -> Result<Vec<Case>, String> {
    let Definition { layout, metric, tokens, .. } = definition;
    let cases = match layout {
        PromptLayout::LongBench { prompt, classes } => {
            vec![longbench::case(prompt, *classes, row)?]
        }
        PromptLayout::Babilong { prompt, labels } => vec![babilong::case(prompt, labels, row)?],
        PromptLayout::Loogle { prompt, asked } => loogle::cases(prompt, *asked, row)?,
        PromptLayout::InfiniteBench { prompt } => vec![infinitebench::case(prompt, *metric, row)?],
        PromptLayout::Ruler => vec![ruler::case(row)?],
        PromptLayout::Math => vec![math::case(row)?],
    };
    Ok(cases.into_iter().map(|case| Case { tokens: *tokens, ..case }).collect())
}

fn find(dir: &Path, files: &[String]) -> Option<PathBuf> {
    files
        .iter()
        .flat_map(|file| {
            rows::ENDINGS.iter().map(move |ending| dir.join(format!("{file}.{ending}")))
        })
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
