//! Codes and means of consecutive blocks of keys.

use half::bf16;

use super::{BLOCK, GROUP, PER_WORD};
use crate::Segment;

/// Codes and means of consecutive blocks of keys. An item is a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CodeBlocks {
    dim: usize,
    /// `[blocks][words][BLOCK]`. The two bits from `8 m + 2 k` on of word `j` are the code of
    /// element `16 j + 4 k + m`.
    words: Vec<u32>,
    /// Rotated means, `[groups][dim][GROUP]`.
    pub(super) means: Vec<bf16>,
}

impl CodeBlocks {
    pub(super) fn new(dim: usize) -> Self {
        Self { dim, words: Vec::new(), means: Vec::new() }
    }

    /// Codes of the blocks from `block` on.
    pub(super) fn words_from(&self, block: usize) -> &[u32] {
        &self.words[block * BLOCK * self.words_per_key()..]
    }

    /// Number of words of a key's code.
    fn words_per_key(&self) -> usize {
        self.dim.div_ceil(PER_WORD)
    }

    /// Adds the next block: the codes of the elements of its keys, `[BLOCK · dim]`, from 0 to 3,
    /// and its rotated mean, `[dim]`.
    pub(super) fn push(&mut self, codes: &[f32], mean: &[bf16]) {
        let (dim, words, block) = (self.dim, self.words_per_key(), self.items() / BLOCK);
        self.words.resize((block + 1) * words * BLOCK, 0);
        for (token, key) in codes.chunks_exact(dim).enumerate() {
            for (j, part) in key.chunks(PER_WORD).enumerate() {
                let codes = part.iter().enumerate();
                let word = codes.fold(0, |word, (i, &code)| {
                    word | (code as u32) << (8 * (i % 4) + 2 * (i / 4))
                });
                self.words[(block * words + j) * BLOCK + token] = word;
            }
        }
        let group = block / GROUP * GROUP * dim;
        self.means.resize(group + GROUP * dim, bf16::ZERO);
        for (i, &c) in mean.iter().enumerate() {
            self.means[group + i * GROUP + block % GROUP] = c;
        }
    }
}

impl Segment for CodeBlocks {
    fn without_items(&self) -> Self {
        Self::new(self.dim)
    }

    fn items(&self) -> usize {
        self.words.len() / self.words_per_key()
    }

    /// Removes all but the first `items` tokens, which are whole blocks.
    fn keep_first(&mut self, items: usize) {
        self.words.truncate(items * self.words_per_key());
        self.means.truncate((items / BLOCK).div_ceil(GROUP) * GROUP * self.dim);
    }

    fn byte_size(&self) -> usize {
        size_of_val(&self.words[..]) + size_of_val(&self.means[..])
    }
}
