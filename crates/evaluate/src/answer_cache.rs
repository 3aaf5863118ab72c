//! Answers, and densities that were measured, are kept as they come, so that an evaluation that was
//! interrupted goes on.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Answered, Error, Record, Result};

/// Answers and densities by what they depend on, and the file that they are kept in: a line of JSON
/// for each.
#[derive(Debug, Default)]
pub struct AnswerCache {
    file: Option<(PathBuf, File)>,
    answers: HashMap<String, Answered>,
    densities: HashMap<String, f64>,
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Answer(Box<Record>),
    Density(Density),
}

/// What a pipeline was measured to read of some texts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Density {
    digest: String,
    density: f64,
}

impl AnswerCache {
    /// Opens a file of answers, or begins one. A last line that was cut by an interruption is
    /// taken away.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::AnswerCache`] if it holds something else.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::File { path: path.into(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let text = std::io::read_to_string(&file).map_err(failed)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (mut answers, mut densities) = (HashMap::new(), HashMap::new());
        for (i, line) in text[..whole].lines().enumerate() {
            let line = serde_json::from_str(line).map_err(|error| Error::AnswerCache {
                path: path.into(),
                line: i + 1,
                reason: format!("{error}; expected an answer that `vattention evaluate` kept"),
            })?;
            match line {
                Line::Answer(record) => {
                    let Record { digest, attended, .. } = *record;
                    answers.insert(digest, attended);
                }
                Line::Density(found) => {
                    densities.insert(found.digest, found.density);
                }
            }
        }
        if whole < text.len() && !looks_cut(&text[whole..]) {
            let reason = "expected answers that `vattention evaluate` kept".into();
            let line = text[..whole].lines().count() + 1;
            return Err(Error::AnswerCache { path: path.into(), line, reason });
        }
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { file: Some((path.into(), file)), answers, densities })
    }

    /// The answer that depends on the same.
    pub(crate) fn find(&self, digest: &str) -> Option<Answered> {
        self.answers.get(digest).cloned()
    }

    /// The density that depends on the same.
    pub(crate) fn density(&self, digest: &str) -> Option<f64> {
        self.densities.get(digest).copied()
    }

    /// Keeps a density.
    pub(crate) fn push_density(&mut self, digest: String, density: f64) -> Result<()> {
        self.densities.insert(digest.clone(), density);
        self.write(&Line::Density(Density { digest, density }))
    }

    /// Keeps an answer.
    pub(crate) fn push(&mut self, record: Record) -> Result<()> {
        self.answers.insert(record.digest.clone(), record.attended.clone());
        self.write(&Line::Answer(Box::new(record)))
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let written = serde_json::to_string(line)
            .map_err(std::io::Error::other)
            .and_then(|line| file.write_all(format!("{line}\n").as_bytes()));
        written.map_err(|source| Error::File { path: path.clone(), source })
    }
}

/// Whether a line without an end is the beginning of an answer, and not of somebody's file.
fn looks_cut(line: &str) -> bool {
    const BEGINNING: &str = "{\"digest\":\"";
    line.starts_with(BEGINNING) || BEGINNING.starts_with(line)
}
