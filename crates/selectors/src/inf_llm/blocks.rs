//! Blocks of tokens, their representatives, and the attention that these are chosen by.

use vattention_core::{Picks, Tokens};

use crate::per_token::per_token;

/// The blocks of one KV head.
#[derive(Clone, Debug)]
pub(super) struct MemoryBlocks {
    block: usize,
    representatives: usize,
    dim: usize,
    /// Tokens appended.
    tokens: usize,
    /// The mean of the representatives' keys of each block, `[blocks, dim]`.
    keys: Vec<f32>,
    /// The sum of those of the last block, `[dim]`.
    last: Vec<f64>,
    states: Vec<State>,
    /// The first token of the blocks that may still receive attention.
    unsettled: usize,
    /// What each token from there on has received.
    attention: Vec<f64>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Tokens that represent it.
    representatives: usize,
    /// Whether any of its tokens has received attention.
    attended: bool,
    /// Whether one has since the representatives were chosen: who asks must choose anew.
    stale: bool,
}

impl MemoryBlocks {
    /// No tokens yet.
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

    /// Takes new tokens in.
    pub(super) fn append(&mut self, keys: Tokens<'_>) {
        let mut key = vec![0.0; self.dim];
        for i in 0..keys.len() {
            if self.tokens.is_multiple_of(self.block) {
                self.states.push(State::default());
                self.keys.resize(self.keys.len() + self.dim, 0.0);
                self.last = vec![0.0; self.dim];
            }
            let block = self.states.len() - 1;
            let State { representatives, attended, .. } = self.states[block];
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

    /// Lets `representatives` tokens stand for a block, with the sum of their keys.
    fn represent(&mut self, block: usize, sum: Vec<f64>, representatives: usize) {
        self.states[block].representatives = representatives;
        let key = &mut self.keys[block * self.dim..][..self.dim];
        key.copy_from_slice(&mean(&sum, representatives));
        if block + 1 == self.states.len() {
            self.last = sum;
        }
    }

    /// Adds to what a token has received, unless its block is settled.
    pub(super) fn attend(&mut self, token: usize, weight: f64) {
        if token >= self.unsettled && token < self.tokens && weight > 0.0 {
            self.attention[token - self.unsettled] += weight;
            let state = &mut self.states[token / self.block];
            (state.attended, state.stale) = (true, true);
        }
    }

    /// Chooses the representatives of the blocks that have received attention since they were
    /// chosen last, as far as `keys`, of the first tokens, are of all that a block has.
    pub(super) fn renew(&mut self, keys: Tokens<'_>) {
        for block in self.unsettled / self.block..self.states.len() {
            if self.states[block].stale && self.end(block) <= keys.len() {
                let (sum, representatives) = self.chosen(block, keys);
                self.represent(block, sum, representatives);
                self.states[block].stale = false;
            }
        }
    }

    /// The first token that is not of a block.
    fn end(&self, block: usize) -> usize {
        self.tokens.min((block * self.block).saturating_add(self.block))
    }

    /// The sum of the keys of those tokens of a block that represent it, and how many these are;
    /// `keys` are of the first tokens, others there are none.
    fn chosen(&self, block: usize, keys: Tokens<'_>) -> (Vec<f64>, usize) {
        let (first, end) = (block * self.block, self.end(block).min(keys.len()));
        let places = self.choose(first, end);
        let (mut sum, mut key) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        for &place in &places {
            keys.copy_row(first + place as usize, &mut key);
            add(&mut sum, &key);
        }
        (sum, places.len())
    }

    /// The places of those that have received the most among tokens of a block, ascending; all if
    /// that is not known.
    fn choose(&self, first: usize, end: usize) -> Vec<u32> {
        let known = first.checked_sub(self.unsettled);
        let received = known.map_or(&[][..], |known| &self.attention[known..][..end - first]);
        if received.iter().all(|&received| received == 0.0) {
            return (0..(end - first) as u32).collect();
        }
        let received: Vec<f32> = received.iter().map(|&received| received as f32).collect();
        let mut best = Picks::new(received.len());
        best.take_top(self.representatives, &received);
        best.indices()
    }

    /// Forgets the attention of the blocks that end before token `near`: they will receive no
    /// more, and their representatives stay.
    pub(super) fn settle(&mut self, near: usize) {
        let settled = near / self.block * self.block;
        if settled > self.unsettled {
            self.attention.drain(..settled - self.unsettled);
            self.unsettled = settled;
        }
    }

    /// The score of each of the first tokens, whose keys these are: its block's.
    pub(super) fn scores(&self, query: &[f32], keys: Tokens<'_>) -> Vec<f32> {
        let mut of_blocks = vec![0.0; keys.len().div_ceil(self.block)];
        let known = Tokens::new(&self.keys, self.states.len(), self.dim);
        known.dots(0..of_blocks.len(), query, &mut of_blocks);
        for (block, score) in of_blocks.iter_mut().enumerate() {
            if self.states[block].stale || self.end(block) > keys.len() {
                let (sum, representatives) = self.chosen(block, keys);
                *score = Tokens::new(&mean(&sum, representatives), 1, self.dim).dot(0, query);
            }
        }
        per_token(of_blocks, self.block, keys.len())
    }

    /// What grows with the tokens.
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
