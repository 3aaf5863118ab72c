//! Prefix cache: keys and values of prompt blocks, which later prompts with the same prefix share,
//! and the tails of whole prompts, which the same prompts share.
//!
//! The key of an entry is a digest of all tokens up to its end. Prompts are prefilled by dense
//! attention, so entries do not depend on the pipeline, and the sequences of all pipelines share
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use vattention_llm::{Prefilled, PromptBlock, PromptReader, PromptTail};

use super::block_files::BlockDigest;
use super::file_worker::{FileWorker, LoadedBlock};

/// End of the data whose digest is the key of a tail; the data of blocks do not end with it.
const TAIL: &[u8] = b"tail";

/// Blocks in memory and, if there is a folder for them, in files. Tails are in memory only.
pub(super) struct PrefixCache {
    /// Blocks that the thread of the files reads. It is dropped before the thread, which otherwise
    /// would wait until a block is received.
    load: Option<BlockLoad>,
    /// Thread of the files. It is dropped before the blocks in memory, which it still writes.
    files: Option<FileWorker>,
    /// Maximum number of bytes in memory; 0 stores nothing.
    limit: u64,
    /// Fingerprint of the model, with which every chain of digests starts.
    seed: BlockDigest,
    /// Number of tokens of a block.
    block: usize,
    entries: HashMap<BlockDigest, CacheEntry>,
    /// Sum of the sizes of `entries`.
    bytes: u64,
    /// Number of uses so far, a logical clock that orders entries by their last use.
    uses: u64,
}

/// Blocks of one prompt that are read from files.
struct BlockLoad {
    /// Digest of the prompt's last block.
    last: BlockDigest,
    blocks: Receiver<LoadedBlock>,
}

struct CacheEntry {
    content: CacheContent,
    last_use: u64,
}

enum CacheContent {
    Block(Arc<PromptBlock>),
    Tail(Arc<PromptTail>),
}

impl CacheContent {
    fn bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.bytes(),
            Self::Tail(tail) => tail.bytes(),
        }
    }
}

impl PrefixCache {
    /// Creates a cache of at most `limit` bytes for a model with this fingerprint, and blocks of
    /// `block` tokens.
    pub(super) fn new(
        limit: u64,
        block: usize,
        fingerprint: BlockDigest,
        files: Option<FileWorker>,
    ) -> Self {
        let (load, entries, bytes, uses) = (None, HashMap::new(), 0, 0);
        Self { load, files, limit, seed: fingerprint, block, entries, bytes, uses }
    }

    /// Copies the longest cached prefix into a reader that has not read any token yet, and the
    /// rest if the same prompt was read before. Returns false if files of the prefix are still
    /// being read; the caller then tries again later. Waits up to `patience` for each file.
    pub(super) fn copy_known(&mut self, reader: &mut PromptReader<'_>, patience: Duration) -> bool {
        let digests = self.digests(reader);
        let Some((tail, blocks)) = digests.split_last() else { return true };
        if !self.receive_blocks(blocks, patience) {
            return false;
        }
        let mut found = 0;
        for digest in blocks {
            let Some(CacheEntry { content: CacheContent::Block(block), .. }) =
                self.entries.get(digest)
            else {
                break;
            };
            reader.copy_block(block);
            found += 1;
        }
        if found == blocks.len()
            && let Some(CacheEntry { content: CacheContent::Tail(tail), .. }) =
                self.entries.get(tail)
        {
            reader.copy_tail(tail);
            found += 1;
        }
        self.touch(&digests[..found]);
        true
    }

    /// Stores the blocks of a prompt that was read completely and has these digests, as many as the
    /// limit allows.
    pub(super) fn store_blocks(&mut self, digests: &[BlockDigest], reader: &PromptReader<'_>) {
        let Some((_, blocks)) = digests.split_last() else { return };
        self.touch(blocks);
        let mut stored = 0;
        for (i, digest) in blocks.iter().enumerate() {
            if let Some(cached) = self.entries.get(digest) {
                stored += cached.content.bytes();
                continue;
            }
            let block = Arc::new(reader.block(i));
            stored += block.bytes();
            if stored > self.limit {
                break;
            }
            if let Some(files) = &self.files {
                files.store(*digest, &block);
            }
            self.insert(*digest, CacheContent::Block(block));
            self.evict();
        }
        self.touch(blocks);
    }

    /// Stores the tail of a prompt with these digests.
    pub(super) fn store_tail(&mut self, digests: &[BlockDigest], prompt: &Prefilled) {
        let Some(digest) = digests.last().filter(|digest| !self.entries.contains_key(*digest))
        else {
            return;
        };
        let tail = PromptTail::copy(prompt, self.block);
        if tail.bytes() <= self.limit {
            self.insert(*digest, CacheContent::Tail(Arc::new(tail)));
            self.touch(digests);
            self.evict();
        }
    }

    /// Size of the entries in memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of entries in memory.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the digests of all blocks that the prompt may share with others, and of its tail;
    /// none if the cache stores nothing.
    pub(super) fn digests(&self, reader: &PromptReader<'_>) -> Vec<BlockDigest> {
        if self.limit == 0 {
            return Vec::new();
        }
        let mut digests = Vec::with_capacity(reader.sharable_blocks() + 1);
        let mut digest = self.seed;
        for i in 0..reader.sharable_blocks() {
            digest = chain_digest(digest, reader.block_tokens(i)).finalize();
            digests.push(digest);
        }
        let rest = &reader.tokens()[digests.len() * self.block..];
        digests.push(chain_digest(digest, rest).chain_update(TAIL).finalize());
        digests
    }

    /// Inserts the blocks of a prompt that memory does not have, and waits up to `patience` for
    /// each of their files. Returns false if files are still being read.
    fn receive_blocks(&mut self, blocks: &[BlockDigest], patience: Duration) -> bool {
        let Some(load) = self.take_load(blocks) else { return true };
        loop {
            match load.blocks.recv_timeout(patience) {
                Ok(LoadedBlock { digest, block }) => {
                    self.insert(digest, CacheContent::Block(Arc::new(block)));
                    self.touch(blocks);
                    self.evict();
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.load = Some(load);
                    return false;
                }
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// Returns the load of a prompt's blocks, and begins it if there is none; `None` if memory has
    /// all blocks, or there are no files. The load of another prompt, which was cancelled, ends.
    fn take_load(&mut self, blocks: &[BlockDigest]) -> Option<BlockLoad> {
        let (files, last) = (self.files.as_ref()?, *blocks.last()?);
        if let Some(load) = self.load.take().filter(|load| load.last == last) {
            return Some(load);
        }
        let is_missing = |digest: &BlockDigest| !self.entries.contains_key(digest);
        let missing: Vec<_> = blocks.iter().copied().filter(is_missing).collect();
        (!missing.is_empty()).then(|| BlockLoad { last, blocks: files.load(missing) })
    }

    fn insert(&mut self, digest: BlockDigest, content: CacheContent) {
        self.bytes += content.bytes();
        self.uses += 1;
        let before = self.entries.insert(digest, CacheEntry { content, last_use: self.uses });
        self.bytes -= before.map_or(0, |entry| entry.content.bytes());
    }

    /// Marks the entries of a prompt as used, from the last to the first. The last entry is
    /// therefore evicted first: an entry can only be found while all blocks before it are cached.
    fn touch(&mut self, digests: &[BlockDigest]) {
        for digest in digests.iter().rev() {
            self.uses += 1;
            if let Some(cached) = self.entries.get_mut(digest) {
                cached.last_use = self.uses;
            }
        }
    }

    /// Evicts the least recently used entries until the total size is within the limit.
    fn evict(&mut self) {
        while self.bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, cached)| cached.last_use);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else { return };
            let dropped = self.entries.remove(&digest).expect("an entry that was found");
            self.bytes -= dropped.content.bytes();
        }
    }
}

/// Returns the hash of tokens after a prefix with a digest.
fn chain_digest(before: BlockDigest, tokens: &[u32]) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(before);
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hash
}
