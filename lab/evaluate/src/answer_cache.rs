//! Answers, and densities that were measured, are kept as they come, so that an evaluation that was
//! interrupted goes on.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vattention_experiments::{Error, Header, LineFile, Part};

use crate::{CaseAnswer, Record, Result};

/// Answers and densities by what they depend on, and the file that they are kept in: a line of JSON
/// for each.
#[derive(Debug, Default)]
pub struct AnswerCache {
    part: Part,
    file: Option<LineFile>,
    answers: HashMap<String, CaseAnswer>,
    densities: HashMap<String, Option<f64>>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredLine {
    Answer(Box<Record>),
    Density(Density),
}

/// What a pipeline was measured to read of some texts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Density {
    digest: String,
    /// `None`: the model took no step by the pipeline.
    #[serde(deserialize_with = "Option::deserialize")]
    density: Option<f64>,
}

impl AnswerCache {
    /// Opens a file of answers, or begins one. A last line that was cut by an interruption is
    /// taken away. Answers to other questions may be in it.
    ///
    /// # Errors
    /// A file that cannot be read or written, that another run writes, or that holds something else.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, text) = LineFile::open(path)?;
        let header = Header::of_lines(path, &text)?.is_some();
        Self::new(path, file, &text, header.into(), Part::All)
    }

    /// The same for one evaluation, which is shared: the file begins with what its answers depend on.
    ///
    /// # Errors
    /// As [`open`](Self::open), or answers of another evaluation or another shard.
    pub fn open_shared(path: &Path, header: &Header, part: Part) -> Result<Self> {
        let (file, text) = header.open(path, part)?;
        Self::new(path, file, &text, 1, part)
    }

    fn new(path: &Path, file: LineFile, text: &str, skipped: usize, part: Part) -> Result<Self> {
        let (mut answers, mut densities) = (HashMap::new(), HashMap::new());
        for (i, line) in text.lines().enumerate().skip(skipped) {
            let line = serde_json::from_str(line).map_err(|error| Error::Results {
                path: path.into(),
                line: i + 1,
                reason: format!("{error}; expected an answer that `vattention evaluate` kept"),
            })?;
            match line {
                StoredLine::Answer(record) => {
                    let Record { digest, attended, .. } = *record;
                    answers.insert(digest, attended);
                }
                StoredLine::Density(found) => {
                    densities.insert(found.digest, found.density);
                }
            }
        }
        Ok(Self { part, file: Some(file), answers, densities })
    }

    /// Which cases may be asked.
    pub(crate) fn part(&self) -> Part {
        self.part
    }

    /// The answer that depends on the same.
    pub(crate) fn find(&self, digest: &str) -> Option<CaseAnswer> {
        self.answers.get(digest).cloned()
    }

    /// The density that depends on the same, if it is kept.
    pub(crate) fn density(&self, digest: &str) -> Option<&Option<f64>> {
        self.densities.get(digest)
    }

    /// Keeps a density.
    pub(crate) fn push_density(&mut self, digest: String, density: Option<f64>) -> Result<()> {
        self.densities.insert(digest.clone(), density);
        self.write(&StoredLine::Density(Density { digest, density }))
    }

    /// Keeps an answer.
    pub(crate) fn push(&mut self, record: Record) -> Result<()> {
        self.answers.insert(record.digest.clone(), record.attended.clone());
        self.write(&StoredLine::Answer(Box::new(record)))
    }

    fn write(&mut self, line: &StoredLine) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = serde_json::to_string(line)
            .map_err(|error| Error::Setting { field: "results", reason: error.to_string() })?;
        Ok(file.push(&line)?)
    }
}
