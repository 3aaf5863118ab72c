//! Files that are written whole or not at all.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Writes `path` by filling a file beside it and renaming that: a failure leaves the old file, or
/// none. A link is followed; what is not a regular file, such as a pipe or a terminal, is written
/// into.
///
/// A program that is interrupted meanwhile should remove [`partial_path`].
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

/// Whether [`write_beside`] can work, to be known before the work whose result it writes.
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

/// The file beside `path` that this process fills before it becomes `path`.
pub fn partial_path(path: &Path) -> PathBuf {
    let target = follow(path);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.partial-{}", std::process::id()))
}

/// Fills a file and does the last step with it; if anything fails, it is removed.
fn fill(
    partial: &Path,
    bytes: &[u8],
    last: impl FnOnce(&Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(partial)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    let result = write().and_then(|()| last(partial));
    if result.is_err() {
        // It may never have been made; what went wrong first is what is told.
        let _ = std::fs::remove_file(partial);
    }
    result
}

/// The file that a path leads to, if it exists.
fn follow(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Whether a path exists and is neither a file nor a folder.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}
