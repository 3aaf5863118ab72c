//! Cache of compiled programs on disk, by a hash of the compiler's inputs.
//!
//! A file is a program followed by its SHA-256, because the driver does not check what it loads.
//! Failing to read or write the cache is no error: the program is then compiled again.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Key of a compilation, different for different inputs.
pub(super) fn key(compiler: &str, options: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    for part in [compiler, options, text] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("{:x}", hash.finalize())
}

pub(super) fn read(key: &str) -> Option<Vec<u8>> {
    read_in(&folder()?, key)
}

fn read_in(folder: &Path, key: &str) -> Option<Vec<u8>> {
    let mut cubin = std::fs::read(path(folder, key)).ok()?;
    let digest = cubin.split_off(cubin.len().checked_sub(Sha256::output_size())?);
    (Sha256::digest(&cubin)[..] == digest).then_some(cubin)
}

/// Stores a program atomically.
pub(super) fn write(key: &str, cubin: &[u8]) {
    // A failed write only costs a compilation next time.
    let _ = folder().map(|folder| write_in(&folder, key, cubin));
}

fn write_in(folder: &Path, key: &str, cubin: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(cubin)?;
    file.write_all(&Sha256::digest(cubin))?;
    file.persist(path(folder, key))?;
    Ok(())
}

fn path(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.cubin"))
}

/// `$XDG_CACHE_HOME/vattention`, or `~/.cache/vattention`.
fn folder() -> Option<PathBuf> {
    let set = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("vattention"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_inputs_have_other_keys() {
        let keys = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "d")]
            .map(|(compiler, options, text)| key(compiler, options, text));
        for (i, one) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|other| other != one));
        }
        assert_eq!(key("a", "b", "c"), keys[0]);
    }

    #[test]
    fn programs_are_stored_whole_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("not/yet");
        for cubin in [b"one".as_slice(), b"another"] {
            assert_ne!(read_in(&deep, "key").as_deref(), Some(cubin));
            write_in(&deep, "key", cubin).unwrap();
            assert_eq!(read_in(&deep, "key").as_deref(), Some(cubin));
        }
        assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 1);
        let whole = std::fs::read(path(&deep, "key")).unwrap();
        for end in 0..whole.len() {
            std::fs::write(path(&deep, "key"), &whole[..end]).unwrap();
            assert_eq!(read_in(&deep, "key"), None, "first {end} bytes");
        }
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(write_in(&folder.path().join("file"), "key", b"x").is_err());
    }
}
