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
    write_beside_with(path, |file| file.write_all(bytes).map_err(|e| Error::file(path, e)))
}

/// Writes `path` as [`write_beside`] does, with the content that `write` writes to the file.
///
/// # Errors
/// The errors of `write`, and [`Error::File`] if the folder or the file cannot be written.
pub fn write_beside_with<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let (target, failed) = (follow(path), |source| Error::file(path, source));
    if is_special(&target) {
        return write(&mut File::options().write(true).open(&target).map_err(failed)?);
    }
    fill(path, write, |partial| std::fs::rename(partial, &target))
}

/// Checks that [`write_beside`] can write a path, before the work whose result is written.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    let target = follow(path);
    if is_special(&target) {
        Ok(())
    } else if target.is_dir() {
        Err(Error::file(path, std::io::ErrorKind::IsADirectory.into()))
    } else {
        fill(path, |_| Ok(()), |partial| std::fs::remove_file(partial))
    }
}

/// Returns the path of the file beside `path` that this process fills, and then renames to `path`.
pub fn partial_path(path: &Path) -> PathBuf {
    let target = follow(path);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.partial-{}", std::process::id()))
}

/// Fills the file beside `path` and calls `finish` with its path; the file is removed if either
/// fails.
fn fill<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<(), E> {
    let (partial, failed) = (partial_path(path), |source| Error::file(path, source));
    let fill = || -> Result<(), E> {
        let mut file = File::create(&partial).map_err(failed)?;
        write(&mut file)?;
        file.sync_all().map_err(failed)?;
        Ok(finish(&partial).map_err(failed)?)
    };
    let result = fill();
    if result.is_err() {
        // The partial file may not exist; the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
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
