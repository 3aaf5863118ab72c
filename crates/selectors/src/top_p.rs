//! The fewest tokens that hold a share of the attention: what the top-p selectors have in common.

use std::cmp::Ordering;

use vattention_core::{Row, step::Score};

/// How attention spreads over some tokens, 1 in all for each head that counts: `logits` gives
/// theirs for one head.
pub(crate) fn attention(
    row: &Row<'_>,
    score: Score,
    logits: impl Fn(&Row<'_>) -> Vec<f32>,
) -> Vec<f64> {
    let heads = match score {
        Score::Head => vec![logits(row)],
        Score::Group => row.members().map(|member| logits(&member)).collect(),
    };
    let mut shares = vec![0.0; heads[0].len()];
    for logits in heads {
        let shift = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - shift).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (share, weight) in shares.iter_mut().zip(weights) {
            *share += weight / total;
        }
    }
    shares
}

/// Indices by falling share, lower first among equals; at most twice as many are sorted as are asked for.
pub(crate) struct Falling {
    /// Index and share.
    entries: Vec<(usize, f64)>,
    /// Entries that have been given.
    given: usize,
    /// Entries in their place.
    sorted: usize,
    /// Entries that hold the largest shares, of which the first `sorted` are in order.
    pooled: usize,
}

impl Falling {
    pub(crate) fn new(shares: impl Iterator<Item = (usize, f64)>) -> Self {
        Self { entries: shares.collect(), given: 0, sorted: 0, pooled: 0 }
    }

    /// Gives out indices until their shares, with what is `covered` already, exceed `enough`.
    pub(crate) fn until(&mut self, mut covered: f64, enough: f64) -> Vec<usize> {
        let mut given = Vec::new();
        while covered <= enough
            && let Some((index, share)) = self.next()
        {
            covered += share;
            given.push(index);
        }
        given
    }

    /// Brings as many entries again into their place. They come from a pool many times as large, so that it is seldom
    /// that all are looked at.
    fn sort_on(&mut self) {
        if self.sorted == self.pooled {
            let rest = &mut self.entries[self.pooled..];
            self.pooled += bring_forward(rest, 16 * self.sorted.max(64));
        }
        let pool = &mut self.entries[self.sorted..self.pooled];
        let more = bring_forward(pool, self.sorted.max(64));
        pool[..more].sort_unstable_by(by_share);
        self.sorted += more;
    }
}

/// Brings the first `count` of some entries before the others, or all that there are: how many.
fn bring_forward(entries: &mut [(usize, f64)], count: usize) -> usize {
    if count >= entries.len() {
        return entries.len();
    }
    entries.select_nth_unstable_by(count, by_share);
    count
}

fn by_share(a: &(usize, f64), b: &(usize, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Iterator for Falling {
    type Item = (usize, f64);

    fn next(&mut self) -> Option<(usize, f64)> {
        if self.given == self.sorted {
            self.sort_on();
        }
        let entry = self.entries.get(self.given).copied();
        self.given += usize::from(entry.is_some());
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// What is sorted as it is asked for comes in the order of a sort.
        #[test]
        fn falling_is_a_sort(shares in prop::collection::vec(0_u16..999, 0..4000)) {
            let shares: Vec<(usize, f64)> =
                shares.into_iter().map(f64::from).enumerate().collect();
            let mut sorted = shares.clone();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            prop_assert!(Falling::new(shares.into_iter().rev()).eq(sorted));
        }
    }
}
