//! Files to which results are appended line by line.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// An open file of JSON lines, to which lines are appended. Each line is written by a single call,
/// so that a killed run leaves at most the last line incomplete. The file is locked, where the file
/// system supports locks, so that no other run can open it.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: File,
}

impl LineFile {
    /// Opens a file, or creates it, and reads its lines. If the last line begins like a result but
    /// lacks the line break, its writing was interrupted, and the line is removed.
    ///
    /// # Errors
    /// If the file cannot be read or written, another run has it open, or its last line lacks the
    /// line break and does not begin like a result.
    pub fn open(path: &Path) -> Result<(Self, String)> {
        let failed = |source| file_error(path, source);
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        let mut file = options.open(path).map_err(failed)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = "another run writes to this file; give each run a file of its own";
            return Err(failed(std::io::Error::other(message)));
        }
        let mut text = std::io::read_to_string(&file).map_err(failed)?;
        let complete = len_of_complete_lines(path, &text)?;
        text.truncate(complete);
        file.set_len(complete as u64).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok((Self { path: path.into(), file }, text))
    }

    /// Reads the complete lines of a file, and leaves the file unchanged.
    ///
    /// # Errors
    /// If the file cannot be read, or its last line lacks the line break and does not begin like a
    /// result.
    pub fn read(path: &Path) -> Result<String> {
        let mut text = std::fs::read_to_string(path).map_err(|source| file_error(path, source))?;
        text.truncate(len_of_complete_lines(path, &text)?);
        Ok(text)
    }

    /// Appends a line.
    ///
    /// # Errors
    /// If the line cannot be written.
    pub fn push(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(|source| file_error(&self.path, source))
    }

    /// Replaces the first line of a file that was just opened and contains `text`.
    pub(super) fn replace_first(&mut self, text: &str, first: &str) -> Result<()> {
        let rest = text.split_once('\n').map_or("", |(_, rest)| rest);
        let failed = |source| file_error(&self.path, source);
        let partial = self.path.with_extension(format!("partial-{}", std::process::id()));
        let write = || -> std::io::Result<File> {
            let mut file = File::create_new(&partial)?;
            file.write_all(format!("{first}\n{rest}").as_bytes())?;
            std::fs::rename(&partial, &self.path)?;
            // No other run has opened the new file yet; the file system may not support locks.
            let _ = file.try_lock();
            Ok(file)
        };
        let written = write();
        if written.is_err() {
            // The partial file may not exist; the first error is the one to report.
            let _ = std::fs::remove_file(&partial);
        }
        self.file = written.map_err(failed)?;
        Ok(())
    }

    /// Creates the error for an unexpected result in the file.
    pub(super) fn refuse(&self, reason: String) -> Error {
        Error::trace(&self.path, reason)
    }
}

/// Returns the number of bytes of the complete lines.
fn len_of_complete_lines(path: &Path, text: &str) -> Result<usize> {
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    let cut = &text[complete..];
    let begins = |beginning: &&str| cut.starts_with(beginning) || beginning.starts_with(cut);
    if cut.is_empty() || BEGINNINGS.iter().any(begins) {
        return Ok(complete);
    }
    let reason = "expected results that `vattention` wrote".into();
    let line = text[..complete].lines().count() + 1;
    Err(Error::Results { path: path.into(), line, reason })
}

/// Returns the lines of a text with their numbers, from 1.
pub(super) fn number_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    vattention_trace::Error::File { path: path.into(), source }.into()
}

/// Beginnings of lines of results: the header, results of units, and answers of an evaluation.
pub(super) const BEGINNINGS: [&str; 3] = ["{\"vattention\":\"", "{\"unit\":\"", "{\"digest\":\""];
