//! Files that are written whole or not at all.

use std::io::Write;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// Writes `path` by filling a file beside it and renaming that: an interruption leaves the old
/// file, or none.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = file_beside(path)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        allow_reading(file.as_file())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|source| Error::file(path, source))
}

/// Whether [`write_beside`] can work, to be known before the work whose result it writes.
///
/// # Errors
/// [`Error::File`] if the folder or the file cannot be written.
pub fn check_writable(path: &Path) -> Result<()> {
    file_beside(path).map(drop).map_err(|source| Error::file(path, source))
}

fn file_beside(path: &Path) -> std::io::Result<NamedTempFile> {
    if path.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    tempfile::Builder::new().prefix(".vattention-").tempfile_in(folder)
}

/// Temporary files are private to their owner; results are not.
#[cfg(unix)]
fn allow_reading(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn allow_reading(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}
