//! Files of saved sessions, checked when they are opened.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;
use sha2::{Digest, Sha256};
use vattention_core::Storage;

use super::header::{DIGEST, DIGEST_BYTES, FAMILY, FORMAT, SavedHeader, TOKENS, TensorLayout};
use crate::{Error, Result};

/// Largest header that the safetensors format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Number of bytes that are digested together.
const CHUNK: u64 = 1 << 20;

/// Saved session whose file is complete and unchanged since it was written.
#[derive(Debug)]
pub struct SavedSession {
    path: PathBuf,
    file: File,
    /// Byte at which the first tensor begins.
    start: u64,
    metadata: Metadata,
    pub(super) header: SavedHeader,
    pub(super) storage: Storage,
    tokens: Vec<u32>,
}

impl SavedSession {
    /// Opens a file, and checks its digest.
    ///
    /// Cost: all bytes of the file are read and digested; memory holds the header and the tokens.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::SavedSession`] with the reason: the file is not a saved
    /// session, has another version, is incomplete or was changed.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::file(path, source);
        let refuse = |reason: String| Error::saved_session(path, reason);
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let (start, metadata) = read_metadata(&mut file, length).map_err(refuse)?;
        let description = find_description(&metadata).map_err(refuse)?;
        check_digest(&mut file, start, length, &metadata).map_err(refuse)?;
        let header: SavedHeader =
            serde_json::from_str(description).map_err(|error| refuse(error.to_string()))?;
        let Some(storage) = header.storage() else {
            return Err(refuse(format!("number type {:?}", header.storage)));
        };
        let path = path.into();
        let tokens = Vec::new();
        let mut saved = Self { path, file, start, metadata, header, storage, tokens };
        let layout = TensorLayout::new(TOKENS, safetensors::Dtype::U32, &[saved.header.tokens]);
        let bytes = saved.read(&layout)?;
        saved.tokens = bytes.as_chunks().0.iter().map(|&x| u32::from_le_bytes(x)).collect();
        if saved.tokens.is_empty() {
            return Err(saved.refuse("there are no tokens"));
        }
        Ok(saved)
    }

    /// Tokens of the session.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Text of the tokens, if the session was saved with it.
    pub fn text(&self) -> Option<&str> {
        self.header.text.as_deref()
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a tensor.
    pub(super) fn read(&mut self, layout: &TensorLayout) -> Result<Vec<u8>> {
        let TensorLayout { name, dtype, shape } = layout;
        let info = self.metadata.info(name).filter(|info| {
            let same = info.dtype == *dtype && info.shape == *shape;
            same && info.data_offsets.0 <= info.data_offsets.1
        });
        let Some(info) = info else {
            let reason = format!("no tensor `{name}` of {dtype:?} and shape {shape:?}");
            return Err(self.refuse(&reason));
        };
        let (first, end) = info.data_offsets;
        let mut bytes = vec![0; end - first];
        self.file
            .seek(SeekFrom::Start(self.start + first as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| Error::file(&self.path, source))?;
        Ok(bytes)
    }

    /// Returns an error about this file.
    pub(super) fn refuse(&self, reason: &str) -> Error {
        Error::saved_session(&self.path, reason)
    }
}

/// Reads the position of the first tensor and the list of tensors from a file of `length` bytes.
fn read_metadata(file: &mut File, length: u64) -> Result<(u64, Metadata), String> {
    let mut prefix = [0; 8];
    let not_saved = |why: String| format!("not a saved session: {why}");
    file.read_exact(&mut prefix).map_err(|error| not_saved(error.to_string()))?;
    let size = u64::from_le_bytes(prefix);
    if size > MAX_HEADER.min(length.saturating_sub(8)) {
        return Err(not_saved(format!("its header has {size} bytes, the file {length}")));
    }
    let mut text = vec![0; size as usize];
    file.read_exact(&mut text).map_err(|error| not_saved(error.to_string()))?;
    let metadata: Metadata =
        serde_json::from_slice(&text).map_err(|error| not_saved(error.to_string()))?;
    let end = (8 + size).saturating_add(metadata.data_len() as u64);
    if end != length {
        return Err(format!("its tensors end at byte {end}, the file at byte {length}"));
    }
    Ok((8 + size, metadata))
}

/// Returns the description of the session, which must be in this version's format.
fn find_description(metadata: &Metadata) -> Result<&str, String> {
    let strings = metadata.metadata().iter().flatten();
    let mut formats = strings.filter(|(key, _)| key.starts_with(FAMILY));
    match formats.next() {
        Some((format, description)) if format == FORMAT => Ok(description),
        Some((other, _)) => Err(format!("its format is {other:?}; expected {FORMAT:?}")),
        None => Err(format!("not a saved session: it has no format; expected {FORMAT:?}")),
    }
}

/// Compares the last tensor with the digest of all bytes before it.
fn check_digest(
    file: &mut File,
    start: u64,
    length: u64,
    metadata: &Metadata,
) -> Result<(), String> {
    let data = (length - start) as usize;
    let place = metadata.info(DIGEST).map(|info| info.data_offsets);
    let Some(content) = length.checked_sub(DIGEST_BYTES as u64) else {
        return Err("there is no digest".into());
    };
    if place != Some((data.saturating_sub(DIGEST_BYTES), data)) || content < start {
        return Err("there is no digest at its end".into());
    }
    let mut digest = Sha256::new();
    let mut found = [0; DIGEST_BYTES];
    let mut read = || -> std::io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        let mut chunk = Vec::new();
        for first in (0..content).step_by(CHUNK as usize) {
            chunk.resize(CHUNK.min(content - first) as usize, 0);
            file.read_exact(&mut chunk)?;
            digest.update(&chunk);
        }
        file.read_exact(&mut found)
    };
    read().map_err(|error| error.to_string())?;
    if digest.finalize()[..] == found {
        return Ok(());
    }
    Err("its digest is not that of its content: the file was changed or damaged".into())
}
