//! Cache of answers and measured densities, from which an interrupted evaluation continues.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use vattention_experiments::{Error, Header, LineFile, Part};

use crate::{CaseAnswer, Record, Result};

/// Answers and densities by the digests of their inputs, and the file that stores them: a line of
/// JSON for each.
#[derive(Debug, Default)]
pub struct AnswerCache {
    part: Part,
    file: Option<LineFile>,
    answers: HashMap<String, CaseAnswer>,
    densities: HashMap<String, Option<f64>>,
}

/// Line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredLine {
    Answer(Box<Record>),
    Density(StoredDensity),
}

/// Measured density of a pipeline on a text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredDensity {
    digest: String,
    /// Density; `None` if the model took no step with the pipeline.
    #[serde(deserialize_with = "Option::deserialize")]
    density: Option<f64>,
}

impl AnswerCache {
    /// Opens a file of answers, or creates it. An incomplete last line, which an interruption
    /// leaves, is removed. The file may contain answers of other evaluations.
    ///
    /// # Errors
    /// If the file cannot be read or written, another run has it open, or it is not a file of
    /// answers.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, text) = LineFile::open(path)?;
        let header = Header::parse(path, &text)?.is_some();
        Self::new(path, file, &text, header.into(), Part::All)
    }

    /// Opens the file of one evaluation that is divided into shards: the file begins with a header.
    ///
    /// # Errors
    /// Same as [`open`](Self::open), and if the answers are those of another evaluation or another
    /// shard.
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
                reason: format!("{error}; expected an answer that `vattention evaluate` wrote"),
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

    /// Cases that may be computed.
    pub(crate) fn part(&self) -> Part {
        self.part
    }

    /// Returns the stored answer with a digest.
    pub(crate) fn find(&self, digest: &str) -> Option<CaseAnswer> {
        self.answers.get(digest).cloned()
    }

    /// Returns the stored density with a digest.
    pub(crate) fn density(&self, digest: &str) -> Option<&Option<f64>> {
        self.densities.get(digest)
    }

    /// Stores a density.
    pub(crate) fn push_density(&mut self, digest: String, density: Option<f64>) -> Result<()> {
        self.densities.insert(digest.clone(), density);
        self.write(&StoredLine::Density(StoredDensity { digest, density }))
    }

    /// Stores an answer.
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
