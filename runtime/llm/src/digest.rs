//! Digest of a checkpoint, which identifies the model in files that depend on it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::files::is_gguf;
use crate::weights::CheckpointTensors;
use crate::{Error, Result};

/// Maximum size in bytes of a file that is read as a whole.
const WHOLE: u64 = 1 << 24;

/// Number of bytes at the beginning of larger files that are read: headers and configuration.
const BEGINNING: u64 = 1 << 20;

/// Distance between samples of larger files, in bytes. Each sample has `SAMPLE` bytes; another one
/// is at the end of the file.
const STRIDE: u64 = 1 << 18;
const SAMPLE: u64 = 1 << 12;

/// Returns the digest of a checkpoint: SHA-256, in hexadecimal digits, of `config.json` and the
/// safetensors files of a folder, or of all parts of a GGUF file. Files of up to 16 MiB are read as
/// a whole.
/// Larger files contribute their length, their first MiB, and 4 KiB of every 256 KiB, so that the
/// digest of a model of 16 GB takes less than a second. Further training changes the digest;
/// changes of single numbers may leave it the same.
///
/// # Errors
/// [`Error::File`] or [`Error::Checkpoint`] if the files of the checkpoint cannot be read.
pub fn model_digest(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let config = (!is_gguf(path)).then(|| path.join("config.json"));
    for path in config.into_iter().chain(CheckpointTensors::open(path)?.files()) {
        add_file(&mut digest, &path).map_err(|source| Error::file(&path, source))?;
    }
    Ok(format!("{:x}", digest.finalize()))
}

fn add_file(digest: &mut Sha256, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    digest.update(length.to_le_bytes());
    if length <= WHOLE {
        return add_part(digest, &mut file, 0, length);
    }
    add_part(digest, &mut file, 0, BEGINNING)?;
    for first in (BEGINNING..length - SAMPLE).step_by(STRIDE as usize) {
        add_part(digest, &mut file, first, SAMPLE)?;
    }
    add_part(digest, &mut file, length - SAMPLE, SAMPLE)
}

fn add_part(digest: &mut Sha256, file: &mut File, first: u64, count: u64) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(first))?;
    std::io::copy(&mut file.take(count), digest)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn digest(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        let mut digest = Sha256::new();
        add_file(&mut digest, &path).unwrap();
        format!("{:x}", digest.finalize())
    }

    #[test]
    fn every_part_of_a_file_counts() {
        for length in [0, 5000, WHOLE as usize, WHOLE as usize + 1, WHOLE as usize + 300_000] {
            let mut bytes: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            let before = digest(&bytes);
            assert_eq!(before, digest(&bytes), "{length}");
            bytes.push(0);
            assert_ne!(before, digest(&bytes), "{length}: another length");
            bytes.pop();
            let (last, whole) = (length.saturating_sub(1), length as u64 <= WHOLE);
            for place in [0, length / 2, length * 3 / 4, last] {
                let part = if whole { 1 } else { STRIDE as usize };
                let place = place / part * part;
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1;
                    assert_ne!(before, digest(&bytes), "{length}: byte {place}");
                    bytes[place] ^= 1;
                }
            }
        }
    }
}
