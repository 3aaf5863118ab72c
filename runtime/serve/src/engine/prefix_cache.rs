//! Prefix cache: keys and values of prompt blocks, which later prompts with the same prefix share.
//!
//! The key of a block is a digest of all tokens up to its end. Prompts are prefilled by dense
//! attention, so blocks do not depend on the pipeline, and the sequences of all pipelines share
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use vattention_llm::{PromptBlock, PromptReader};

use super::block_files::{BlockDigest, BlockFiles};

/// Blocks in memory and, if there is a folder for them, in files.
pub(super) struct PrefixCache {
    /// Maximum number of bytes in memory; 0 stores nothing.
    limit: u64,
    /// Fingerprint of the model, with which every chain of digests starts.
    seed: BlockDigest,
    blocks: HashMap<BlockDigest, CachedBlock>,
    /// Sum of the sizes of `blocks`.
    bytes: u64,
    /// Number of uses so far, a logical clock that orders blocks by their last use.
    uses: u64,
    files: Option<BlockFiles>,
}

struct CachedBlock {
    block: Arc<PromptBlock>,
    last_use: u64,
}

impl PrefixCache {
    /// Creates a cache of at most `limit` bytes for a model with this fingerprint.
    pub(super) fn new(limit: u64, fingerprint: BlockDigest, files: Option<BlockFiles>) -> Self {
        let (blocks, bytes, uses) = (HashMap::new(), 0, 0);
        Self { limit, seed: fingerprint, blocks, bytes, uses, files }
    }

    /// Copies the longest cached prefix into a reader that has not read any token yet.
    pub(super) fn copy_known(&mut self, reader: &mut PromptReader<'_>) {
        let mut found = Vec::new();
        for digest in self.digests(reader) {
            let Some(block) = self.find(&digest) else { break };
            reader.copy_block(&block);
            found.push(digest);
        }
        self.touch(&found);
    }

    /// Stores the blocks of a prompt that was read completely, as many as the limit allows.
    pub(super) fn store(&mut self, reader: &PromptReader<'_>) {
        let digests = self.digests(reader);
        self.touch(&digests);
        let mut stored = 0;
        for (i, digest) in digests.iter().enumerate() {
            if let Some(cached) = self.blocks.get(digest) {
                stored += cached.block.bytes();
                continue;
            }
            let block = Arc::new(reader.block(i));
            stored += block.bytes();
            if stored > self.limit {
                break;
            }
            if let Some(files) = &mut self.files {
                files.store(digest, &block);
            }
            self.insert(*digest, block);
        }
        self.touch(&digests);
    }

    /// Size of the blocks in memory, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of blocks in memory.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the digests of all blocks that the prompt may share with others.
    fn digests(&self, reader: &PromptReader<'_>) -> Vec<BlockDigest> {
        let count = if self.limit == 0 { 0 } else { reader.sharable_blocks() };
        let mut digest = self.seed;
        let chain = |i| {
            let mut hash = Sha256::new_with_prefix(digest);
            for token in reader.block_tokens(i) {
                hash.update(token.to_le_bytes());
            }
            digest = hash.finalize();
            digest
        };
        (0..count).map(chain).collect()
    }

    /// Returns a block from memory, or from its file.
    fn find(&mut self, digest: &BlockDigest) -> Option<Arc<PromptBlock>> {
        if let Some(cached) = self.blocks.get(digest) {
            return Some(Arc::clone(&cached.block));
        }
        let block = Arc::new(self.files.as_mut()?.load(digest)?);
        self.insert(*digest, Arc::clone(&block));
        Some(block)
    }

    fn insert(&mut self, digest: BlockDigest, block: Arc<PromptBlock>) {
        self.bytes += block.bytes();
        self.uses += 1;
        self.blocks.insert(digest, CachedBlock { block, last_use: self.uses });
        self.evict();
    }

    /// Marks the blocks of a prompt as used, from the last to the first. The last block is
    /// therefore evicted first: a block can only be found while all blocks before it are cached.
    fn touch(&mut self, digests: &[BlockDigest]) {
        for digest in digests.iter().rev() {
            self.uses += 1;
            if let Some(cached) = self.blocks.get_mut(digest) {
                cached.last_use = self.uses;
            }
        }
    }

    /// Evicts the least recently used blocks until the total size is within the limit.
    fn evict(&mut self) {
        while self.bytes > self.limit {
            let oldest = self.blocks.iter().min_by_key(|(_, cached)| cached.last_use);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else { return };
            let dropped = self.blocks.remove(&digest).expect("a block that was found");
            self.bytes -= dropped.block.bytes();
        }
    }
}
