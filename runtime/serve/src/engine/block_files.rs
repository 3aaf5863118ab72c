//! Files of prompt blocks: the part of the prefix cache that survives a restart.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::digest::Output;
use sha2::{Digest as _, Sha256};
use vattention_llm::{BlockShape, PromptBlock};

/// Digest of a model and of all tokens of a prompt up to the end of a block.
pub(super) type BlockDigest = Output<Sha256>;

/// First bytes of a file: the format and its version.
const MAGIC: &[u8; 16] = b"vattention-blk-1";

/// Extension of complete files.
const EXTENSION: &str = "block";

/// Folder with a file for each block. A file is written under a temporary name and renamed, so that
/// it is complete or missing. A file that cannot be read or does not match its checksum counts as
/// missing.
pub(super) struct BlockFiles {
    folder: PathBuf,
    shape: BlockShape,
    /// Maximum number of bytes of all files.
    limit: u64,
    /// Bytes of all files.
    bytes: u64,
}

impl BlockFiles {
    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns an error of the operating system if the folder cannot be created or listed.
    pub(super) fn open(folder: &Path, shape: BlockShape, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut files = Self { folder: folder.into(), shape, limit, bytes: 0 };
        files.bytes = files.list()?.iter().map(|file| file.bytes).sum();
        files.remove_oldest();
        Ok(files)
    }

    /// Reads a block; `None` if there is no valid file.
    pub(super) fn load(&mut self, digest: &BlockDigest) -> Option<PromptBlock> {
        let path = self.path(digest);
        let bytes = fs::read(&path).ok()?;
        let Some(block) = self.parse(&bytes) else {
            // The block is written again after it has been read.
            if fs::remove_file(&path).is_ok() {
                self.bytes = self.bytes.saturating_sub(bytes.len() as u64);
            }
            return None;
        };
        // The modification time serves as the time of the last use, which decides the file to
        // remove first. A failure to set the time is harmless.
        let used = fs::File::options().append(true).open(&path);
        let _ = used.and_then(|file| file.set_modified(SystemTime::now()));
        Some(block)
    }

    /// Reads the content of a file; `None` if it is damaged.
    fn parse(&self, bytes: &[u8]) -> Option<PromptBlock> {
        let content = bytes.strip_prefix(MAGIC)?;
        let (checksum, numbers) = content.split_at_checked(32)?;
        let is_whole = Sha256::digest(numbers).as_slice() == checksum;
        if is_whole { PromptBlock::from_bytes(self.shape, numbers) } else { None }
    }

    /// Writes a block; a file that exists may be damaged, and is replaced. A failure to write is
    /// ignored, because a later prompt can compute the block again.
    pub(super) fn store(&mut self, digest: &BlockDigest, block: &PromptBlock) {
        let path = self.path(digest);
        let before = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if let Ok(bytes) = self.write(&path, &block.to_bytes()) {
            self.bytes = self.bytes.saturating_sub(before) + bytes;
            self.remove_oldest();
        }
    }

    fn write(&self, path: &Path, numbers: &[u8]) -> io::Result<u64> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(numbers))?;
        file.write_all(numbers)?;
        file.persist(path)?;
        Ok((MAGIC.len() + 32 + numbers.len()) as u64)
    }

    fn path(&self, digest: &BlockDigest) -> PathBuf {
        self.folder.join(format!("{digest:x}")).with_extension(EXTENSION)
    }

    /// Removes the least recently used files until the total size is within the limit.
    fn remove_oldest(&mut self) {
        if self.bytes <= self.limit {
            return;
        }
        let Ok(mut files) = self.list() else { return };
        files.sort_by_key(|file| file.used);
        for file in files {
            if self.bytes <= self.limit {
                return;
            }
            if fs::remove_file(&file.path).is_ok() {
                self.bytes = self.bytes.saturating_sub(file.bytes);
            }
        }
    }

    /// Returns the complete files of the folder.
    fn list(&self) -> io::Result<Vec<BlockFile>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            // Another server may have removed the file meanwhile.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            files.push(BlockFile { path, bytes: metadata.len(), used: metadata.modified()? });
        }
        Ok(files)
    }
}

struct BlockFile {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}
