//! The fewest tokens that hold a share of the attention: what the top-p selectors have in common.

use vattention_core::{Row, Score};

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

/// Indices of shares by falling share, lower first among equals; only as many are sorted as are
/// asked for, and at most as many again.
pub(crate) struct Falling<'a> {
    shares: &'a [f64],
    indices: Vec<usize>,
    /// Indices that have been given.
    given: usize,
    /// Indices in their place.
    sorted: usize,
}

impl<'a> Falling<'a> {
    pub(crate) fn new(shares: &'a [f64], indices: Vec<usize>) -> Self {
        Self { shares, indices, given: 0, sorted: 0 }
    }

    /// Gives out indices until their shares, with what is `covered` already, exceed `enough`.
    pub(crate) fn until(&mut self, mut covered: f64, enough: f64) -> Vec<usize> {
        let mut given = Vec::new();
        while covered <= enough
            && let Some(index) = self.next()
        {
            covered += self.shares[index];
            given.push(index);
        }
        given
    }

    /// Brings as many indices again into their place.
    fn sort_on(&mut self) {
        let by_share =
            |a: &usize, b: &usize| self.shares[*b].total_cmp(&self.shares[*a]).then(a.cmp(b));
        let rest = &mut self.indices[self.sorted..];
        let more = self.sorted.max(64).min(rest.len());
        if more < rest.len() {
            rest.select_nth_unstable_by(more, by_share);
        }
        rest[..more].sort_unstable_by(by_share);
        self.sorted += more;
    }
}

impl Iterator for Falling<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.given == self.sorted {
            self.sort_on();
        }
        let index = self.indices.get(self.given).copied();
        self.given += usize::from(index.is_some());
        index
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
        fn falling_is_a_sort(shares in prop::collection::vec(0_u8..9, 0..400)) {
            let shares: Vec<f64> = shares.into_iter().map(f64::from).collect();
            let mut sorted: Vec<usize> = (0..shares.len()).collect();
            sorted.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
            prop_assert!(Falling::new(&shares, (0..shares.len()).rev().collect()).eq(sorted));
        }
    }
}
