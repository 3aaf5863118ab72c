//! Blocks of tokens, and their representatives, which are chosen by received attention.

use vattention_core::{Picks, Tokens};

use crate::block_scores::expand_to_tokens;

/// Blocks of tokens of one KV head.
#[derive(Clone, Debug)]
pub(super) struct MemoryBlocks {
    block: usize,
    representatives: usize,
    dim: usize,
    /// Number of tokens appended.
    tokens: usize,
    /// Mean of the representatives' keys, per block, `[blocks, dim]`.
    keys: Vec<f32>,
    /// Sum of the representatives' keys of the last block, `[dim]`.
    last: Vec<f64>,
    states: Vec<BlockState>,
    /// First token of the blocks that may still receive attention. The blocks before it are
    /// settled.
    unsettled: usize,
    /// Attention received by each token from `unsettled` on.
    attention: Vec<f64>,
}

/// State of a block.
#[derive(Clone, Copy, Debug, Default)]
struct BlockState {
    /// Number of tokens that represent the block.
    representatives: usize,
    /// True if any token of the block has received attention.
    attended: bool,
    /// True if a token has received attention since the representatives were chosen, so that they
    /// must be chosen again.
    stale: bool,
}

impl MemoryBlocks {
    /// Creates an index without tokens.
    pub(super) fn new(block: usize, representatives: usize, dim: usize) -> Self {
        Self {
            block,
            representatives,
            dim,
            tokens: 0,
            keys: Vec::new(),
            last: Vec::new(),
            states: Vec::new(),
            unsettled: 0,
            attention: Vec::new(),
        }
    }

    /// Appends new tokens.
    pub(super) fn append(&mut self, keys: Tokens<'_>) {
        let mut key = vec![0.0; self.dim];
        for i in 0..keys.len() {
            if self.tokens.is_multiple_of(self.block) {
                self.states.push(BlockState::default());
                self.keys.resize(self.keys.len() + self.dim, 0.0);
                self.last = vec![0.0; self.dim];
            }
            let block = self.states.len() - 1;
            let BlockState { representatives, attended, .. } = self.states[block];
            // A token without attention ranks last in a block that has some.
            if !attended || representatives < self.representatives {
                let mut sum = std::mem::take(&mut self.last);
                keys.copy_row(i, &mut key);
                add(&mut sum, &key);
                self.represent(block, sum, representatives + 1);
            }
            self.attention.push(0.0);
            self.tokens += 1;
        }
    }

    /// Sets the number of representatives of a block and the sum of their keys.
    fn represent(&mut self, block: usize, sum: Vec<f64>, representatives: usize) {
        self.states[block].representatives = representatives;
        let key = &mut self.keys[block * self.dim..][..self.dim];
        key.copy_from_slice(&mean(&sum, representatives));
        if block + 1 == self.states.len() {
            self.last = sum;
        }
    }

    /// Adds to the attention that a token has received, unless its block is settled.
    pub(super) fn attend(&mut self, token: usize, weight: f64) {
        if token >= self.unsettled && token < self.tokens && weight > 0.0 {
            self.attention[token - self.unsettled] += weight;
            let state = &mut self.states[token / self.block];
            (state.attended, state.stale) = (true, true);
        }
    }

    /// Chooses again the representatives of the blocks that have received attention since the last
    /// choice. `keys` are those of the first tokens; a block that they do not cover is left as it
    /// is.
    pub(super) fn renew(&mut self, keys: Tokens<'_>) {
        for block in self.unsettled / self.block..self.states.len() {
            if self.states[block].stale && self.end(block) <= keys.len() {
                let (sum, representatives) = self.sum_representatives(block, keys);
                self.represent(block, sum, representatives);
                self.states[block].stale = false;
            }
        }
    }

    /// First token after a block.
    fn end(&self, block: usize) -> usize {
        self.tokens.min((block * self.block).saturating_add(self.block))
    }

    /// Returns the sum of the keys of a block's representatives, and their number. `keys` are those
    /// of the first tokens; other tokens are ignored.
    fn sum_representatives(&self, block: usize, keys: Tokens<'_>) -> (Vec<f64>, usize) {
        let (first, end) = (block * self.block, self.end(block).min(keys.len()));
        let places = self.choose_representatives(first, end);
        let (mut sum, mut key) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        for &place in &places {
            keys.copy_row(first + place as usize, &mut key);
            add(&mut sum, &key);
        }
        (sum, places.len())
    }

    /// Returns the places, ascending, of the tokens of a block that have received the most
    /// attention; all places if none has received any, or the attention is no longer stored.
    fn choose_representatives(&self, first: usize, end: usize) -> Vec<u32> {
        let stored = first.checked_sub(self.unsettled);
        let received = stored.map_or(&[][..], |place| &self.attention[place..][..end - first]);
        if received.iter().all(|&received| received == 0.0) {
            return (0..(end - first) as u32).collect();
        }
        let received: Vec<f32> = received.iter().map(|&received| received as f32).collect();
        let mut best = Picks::new(received.len());
        best.take_top(self.representatives, &received);
        best.indices()
    }

    /// Settles the blocks that end before token `near`: drops their attention. They will receive no
    /// more, and their representatives stay.
    pub(super) fn settle(&mut self, near: usize) {
        let settled = near / self.block * self.block;
        if settled > self.unsettled {
            self.attention.drain(..settled - self.unsettled);
            self.unsettled = settled;
        }
    }

    /// Returns the scores of the first `keys.len()` tokens, whose keys are `keys`. A token has the
    /// score of its block.
    pub(super) fn scores(&self, query: &[f32], keys: Tokens<'_>) -> Vec<f32> {
        let mut block_scores = vec![0.0; keys.len().div_ceil(self.block)];
        let block_keys = Tokens::new(&self.keys, self.states.len(), self.dim);
        block_keys.dots(0..block_scores.len(), query, &mut block_scores);
        for (block, score) in block_scores.iter_mut().enumerate() {
            if self.states[block].stale || self.end(block) > keys.len() {
                let (sum, representatives) = self.sum_representatives(block, keys);
                *score = Tokens::new(&mean(&sum, representatives), 1, self.dim).dot(0, query);
            }
        }
        expand_to_tokens(block_scores, self.block, keys.len())
    }

    /// Size in bytes of the parts that grow with the number of tokens.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.keys[..])
            + size_of_val(&self.states[..])
            + size_of_val(&self.attention[..])
    }
}

fn mean(sum: &[f64], count: usize) -> Vec<f32> {
    sum.iter().map(|sum| (sum / count as f64) as f32).collect()
}

fn add(sum: &mut [f64], key: &[f32]) {
    sum.iter_mut().zip(key).for_each(|(sum, &x)| *sum += f64::from(x));
}
