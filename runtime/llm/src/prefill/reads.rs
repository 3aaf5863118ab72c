//! Keys that the queries of a block of tokens read.

use std::sync::Arc;

use crate::attention_form::AttentionForm;
use crate::config::LayerWindow;

/// Number of tokens whose queries share a list of keys: a tile of attention.
pub(crate) const TILE: usize = 64;

/// Queries of a block of tokens, and the keys of one KV head that they may read.
pub(crate) struct QueryBlock<'a> {
    /// `[count, query_heads, head_dim]`, after rotation.
    pub(crate) queries: &'a [f32],
    pub(crate) query_heads: usize,
    /// First of the query heads that share the KV head.
    pub(crate) first_head: usize,
    pub(crate) group: usize,
    /// `[first + count, head_dim]`, after rotation.
    pub(crate) keys: &'a [f32],
    pub(crate) head_dim: usize,
    /// Number of the block's first token.
    pub(crate) first: usize,
    pub(crate) form: AttentionForm<'a>,
}

/// Keys of one KV head that the queries of a tile read: some earlier keys, and all keys from `from`
/// on up to each query's token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reads {
    /// Earlier keys in ascending order; keys from `from` on are ignored.
    earlier: Arc<[usize]>,
    from: usize,
}

impl QueryBlock<'_> {
    /// Number of tokens in the block.
    pub(crate) fn count(&self) -> usize {
        self.queries.len() / (self.query_heads * self.head_dim)
    }

    /// Number of tokens up to the block's last.
    pub(crate) fn visible(&self) -> usize {
        self.first + self.count()
    }

    /// Query of one token and one query head of the group, `[head_dim]`.
    pub(crate) fn query(&self, token: usize, head: usize) -> &[f32] {
        let first = (token * self.query_heads + self.first_head + head) * self.head_dim;
        &self.queries[first..first + self.head_dim]
    }

    /// Returns the number of each tile's first token.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = usize> {
        (self.first..self.visible()).step_by(TILE)
    }
}

impl Reads {
    /// Reads those of `keys`, in ascending order, that lie before `from`, and all keys from there
    /// on.
    pub(crate) fn new(keys: &Arc<[usize]>, from: usize) -> Self {
        Self { earlier: Arc::clone(keys), from }
    }

    /// Earlier keys, those before [`from`](Self::from), in ascending order.
    pub(crate) fn earlier(&self) -> &[usize] {
        &self.earlier[..self.earlier.partition_point(|&key| key < self.from)]
    }

    pub(crate) fn from(&self) -> usize {
        self.from
    }

    /// Number of token-key pairs that tokens `first .. first + count` read.
    pub(crate) fn pairs(&self, first: usize, count: usize) -> u64 {
        let before = (self.from - self.earlier().len()) as u64;
        causal_pairs(first, count, None) - before * count as u64
    }
}

/// Number of causal token-key pairs of tokens `first .. first + count` within a window.
pub(crate) fn causal_pairs(first: usize, count: usize, window: Option<LayerWindow>) -> u64 {
    let begin = |token: usize| window.map_or(0, |window| window.first(token));
    (first..first + count).map(|token| (token + 1 - begin(token)) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted() {
        let keys: Arc<[usize]> = [1, 4, 6, 9].into();
        for from in 0..=10 {
            let reads = Reads::new(&keys, from);
            let read = |token: usize| (0..=token).filter(|key| *key >= from || keys.contains(key));
            let expected: usize = (10..15).map(|token| read(token).count()).sum();
            assert_eq!(reads.pairs(10, 5), expected as u64, "{from}");
        }
        assert_eq!(causal_pairs(10, 5, None), 11 + 12 + 13 + 14 + 15);
        let window = |size, aligned| Some(LayerWindow { size, aligned });
        assert_eq!(causal_pairs(10, 5, window(12, false)), 11 + 12 + 12 + 12 + 12);
        assert_eq!(causal_pairs(10, 5, window(12, true)), 11 + 12 + 1 + 2 + 3);
    }
}
