//! Files that are written whole or not at all.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// Writes `path` by filling a file beside it and renaming that: an interruption leaves the old
/// file, or none. A link is followed; what is not a regular file, such as a pipe or a terminal, is
/// written into.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let target = follow(path);
        if is_special(&target) {
            return File::options().write(true).open(&target)?.write_all(bytes);
        }
        let mut file = file_beside(&target)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(target)?;
        Ok(())
    };
    write().map_err(|source| Error::file(path, source))
}

/// Whether [`write_beside`] can work, to be known before the work whose result it writes.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    let target = follow(path);
    if is_special(&target) {
        return Ok(());
    }
    file_beside(&target).map(drop).map_err(|source| Error::file(path, source))
}

/// The file that a path leads to, if it exists.
fn follow(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// Whether a path exists and is neither a file nor a folder.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

fn file_beside(path: &Path) -> std::io::Result<NamedTempFile> {
    if path.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::metadata(folder)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".vattention-");
    readable(&mut builder);
    builder.tempfile_in(folder)
}

/// Temporary files are private to their owner; results are as open as the user's mask allows.
#[cfg(unix)]
fn readable(builder: &mut tempfile::Builder<'_, '_>) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(std::fs::Permissions::from_mode(0o666));
}

#[cfg(not(unix))]
fn readable(_: &mut tempfile::Builder<'_, '_>) {}
