//! A file that grows line by line.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A file of lines of JSON that is open to take more. A line is written at once, so that a killed run cuts the last
/// one at most. Nobody else can open it meanwhile, where the file system knows locks.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: File,
}

impl LineFile {
    /// Opens a file, or begins one, and reads its lines. A last line without an end that begins like a
    /// result was cut, and is taken away.
    ///
    /// # Errors
    /// A file that cannot be read or written, that another run has open, or whose end is something else.
    pub fn open(path: &Path) -> Result<(Self, String)> {
        let failed = |source| file_error(path, source);
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(failed)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = "another run writes it; expected a file of its own for each";
            return Err(failed(std::io::Error::other(message)));
        }
        let mut text = std::io::read_to_string(&file).map_err(failed)?;
        let whole = whole_lines(path, &text)?;
        text.truncate(whole);
        file.set_len(whole as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Self { path: path.into(), file }, text))
    }

    /// The whole lines of a file, which stays as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read(path: &Path) -> Result<String> {
        let mut text = std::fs::read_to_string(path).map_err(|source| file_error(path, source))?;
        text.truncate(whole_lines(path, &text)?);
        Ok(text)
    }

    /// Adds a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn push(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(|source| file_error(&self.path, source))
    }

    /// Replaces the first line, of a file that was just opened and whose lines are `text`.
    pub(super) fn replace_first(&mut self, text: &str, first: &str) -> Result<()> {
        let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
        let failed = |source| file_error(&self.path, source);
        let partial = self.path.with_extension(format!("partial-{}", std::process::id()));
        let write = || -> std::io::Result<File> {
            let mut file = File::create_new(&partial)?;
            file.write_all(format!("{first}\n{rest}").as_bytes())?;
            std::fs::rename(&partial, &self.path)?;
            // Nobody else knows it yet; where there are no locks, there is none.
            let _ = file.try_lock();
            Ok(file)
        };
        let written = write();
        if written.is_err() {
            // It may never have been made; what went wrong first is what is told.
            let _ = std::fs::remove_file(&partial);
        }
        self.file = written.map_err(failed)?;
        Ok(())
    }

    /// That a result of the file is not what was expected.
    pub(super) fn refuse(&self, reason: String) -> Error {
        Error::trace(&self.path, reason)
    }
}

/// The bytes of the lines that have an end.
fn whole_lines(path: &Path, text: &str) -> Result<usize> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let cut = &text[whole..];
    let begins = |beginning: &&str| cut.starts_with(beginning) || beginning.starts_with(cut);
    if cut.is_empty() || BEGINNINGS.iter().any(begins) {
        return Ok(whole);
    }
    let reason = "expected results that `vattention` kept".into();
    let line = text[..whole].lines().count() + 1;
    Err(Error::Results { path: path.into(), line, reason })
}

/// The lines of a text, and their numbers from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    vattention_trace::Error::File { path: path.into(), source }.into()
}

/// How lines of results begin: the header, those of units, and those of an evaluation's answers.
pub(super) const BEGINNINGS: [&str; 3] = ["{\"vattention\":\"", "{\"unit\":\"", "{\"digest\":\""];
