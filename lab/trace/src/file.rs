//! Atomic writing of files.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Writes `path` by filling a file beside it and renaming that file: a failure leaves the old file,
/// or no file. Links are followed. A path that is not a regular file, such as a pipe or a terminal,
/// is written directly.
///
/// A program that is interrupted during the call should remove [`partial_path`].
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let target = follow(path);
    let written = if is_special(&target) {
        File::options().write(true).open(&target).and_then(|mut file| file.write_all(bytes))
    } else {
        fill(&partial_path(path), bytes, |partial| std::fs::rename(partial, &target))
    };
    written.map_err(|source| Error::file(path, source))
}

/// Checks that [`write_beside`] can write a path, before the work whose result is written.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    let target = follow(path);
    let checked = if is_special(&target) {
        Ok(())
    } else if target.is_dir() {
        Err(std::io::ErrorKind::IsADirectory.into())
    } else {
        fill(&partial_path(path), &[], |partial| std::fs::remove_file(partial))
    };
    checked.map_err(|source| Error::file(path, source))
}

/// Returns the path of the file beside `path` that this process fills, and then renames to `path`.
pub fn partial_path(path: &Path) -> PathBuf {
    let target = follow(path);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.partial-{}", std::process::id()))
}

/// Fills a file and calls `finish` with its path; the file is removed if either fails.
fn fill(
    partial: &Path,
    bytes: &[u8],
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(partial)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    let result = write().and_then(|()| finish(partial));
    if result.is_err() {
        // The partial file may not exist; the first error is the one to report.
        let _ = std::fs::remove_file(partial);
    }
    result
}

/// Follows links to the file that a path leads to; returns the path itself if there is no such
/// file.
fn follow(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Returns true if a path exists and is neither a file nor a folder.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}
