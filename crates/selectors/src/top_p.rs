//! Search for the fewest tokens that hold a given part of the attention, used by the top-p
//! selectors.

use std::cmp::Ordering;

use vattention_core::{
    Row,
    step::{Score, exponentials, largest, sum},
};

/// Attention shares of some tokens, summed over query heads.
#[derive(Debug)]
pub(crate) struct AttentionShares {
    /// Share of each token.
    pub(crate) tokens: Vec<f64>,
    /// Share of the attention sinks; 0 if they do not count.
    pub(crate) sinks: f64,
}

impl AttentionShares {
    /// Computes the attention shares of some tokens, and of the attention sinks if they count. The
    /// shares sum to 1 for each query head that counts. `logits` returns the logits of the tokens
    /// for one query head.
    pub(crate) fn new(
        row: &Row<'_>,
        score: Score,
        sinks_count: bool,
        logits: impl Fn(&Row<'_>) -> Vec<f32>,
    ) -> Self {
        let heads: Vec<Row<'_>> = match score {
            Score::Head => vec![*row],
            Score::Group => row.members().collect(),
        };
        let mut shares = Self { tokens: Vec::new(), sinks: 0.0 };
        for head in heads {
            let logits = logits(&head);
            let sink = head.sink_logit().filter(|_| sinks_count);
            let shift = f64::from(largest(&logits).max(sink.unwrap_or(f32::NEG_INFINITY)));
            let weights = exponentials(&logits, shift, 1.0);
            let sink = sink.map_or(0.0, |sink| (f64::from(sink) - shift).exp());
            let total = sum(&weights) + sink;
            shares.tokens.resize(weights.len(), 0.0);
            for (share, weight) in shares.tokens.iter_mut().zip(weights) {
                *share += weight / total;
            }
            if sink > 0.0 {
                shares.sinks += sink / total;
            }
        }
        shares
    }

    /// Sum of all shares.
    pub(crate) fn total(&self) -> f64 {
        sum(&self.tokens) + self.sinks
    }
}

/// Number of buckets between a power of two and the next one.
const PER_OCTAVE: u32 = 8;

/// Offset subtracted from the numbers of buckets. The lowest bucket holds the shares up to about
/// 2^-64.
const FIRST: usize = (1023 - 64) * PER_OCTAVE as usize;

/// Number of buckets. The last one holds the shares of 2^8 and above.
const BUCKETS: usize = (64 + 8) * PER_OCTAVE as usize + 1;

/// The fewest tokens whose shares exceed a number, chosen by falling share; ties go to the lower
/// token. Shares are summed in buckets, and only the bucket in which the sum crosses the number is
/// sorted.
#[derive(Debug, PartialEq)]
pub(crate) struct TopP {
    /// Tokens taken, in no particular order.
    pub(crate) taken: Vec<usize>,
    /// Token of the largest share that is not taken, if any is left.
    pub(crate) next: Option<usize>,
}

impl TopP {
    /// Finds the fewest of `tokens` whose `shares`, added to the `covered` share, exceed `enough`.
    /// Takes all tokens if their sum does not exceed it.
    pub(crate) fn new(tokens: &[usize], shares: &[f64], covered: f64, enough: f64) -> Self {
        let Some((crossing, covered)) = find_crossing(shares, covered, enough) else {
            return Self { taken: tokens.to_vec(), next: None };
        };
        let (mut taken, mut undecided, mut below) = (Vec::new(), Vec::new(), None);
        for (&token, &share) in tokens.iter().zip(shares) {
            let (place, entry) = (bucket(share), TokenShare { token, share });
            if place > crossing {
                taken.push(token);
            } else if place == crossing {
                undecided.push(entry);
            } else if below.is_none_or(|best| compare_shares(&entry, &best) == Ordering::Less) {
                below = Some(entry);
            }
        }
        undecided.sort_unstable_by(compare_shares);
        let (mut covered, mut count) = (covered, 0);
        while count < undecided.len() && covered <= enough {
            covered += undecided[count].share;
            count += 1;
        }
        taken.extend(undecided[..count].iter().map(|entry| entry.token));
        let next = undecided.get(count).copied().or(below);
        Self { taken, next: next.map(|entry| entry.token) }
    }
}

/// A token and its attention share.
#[derive(Clone, Copy)]
struct TokenShare {
    token: usize,
    share: f64,
}

/// Returns the bucket in which the sum of `covered` and of `shares`, from the largest on, first
/// exceeds `enough`, and the sum before that bucket.
fn find_crossing(shares: &[f64], covered: f64, enough: f64) -> Option<(usize, f64)> {
    let mut sums = [0.0; BUCKETS];
    for &share in shares {
        sums[bucket(share)] += share;
    }
    let mut covered = covered;
    for (place, sum) in sums.into_iter().enumerate().rev() {
        if covered + sum > enough {
            return Some((place, covered));
        }
        covered += sum;
    }
    None
}

/// Returns the bucket of a share, which must not be negative; larger shares are in higher buckets.
fn bucket(share: f64) -> usize {
    let mantissa_bits = f64::MANTISSA_DIGITS - 1 - PER_OCTAVE.ilog2();
    let place = (share.to_bits() >> mantissa_bits) as usize;
    place.saturating_sub(FIRST).min(BUCKETS - 1)
}

fn compare_shares(a: &TokenShare, b: &TokenShare) -> Ordering {
    b.share.total_cmp(&a.share).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference implementation, by sorting all tokens.
    fn sort_all(tokens: &[usize], shares: &[f64], mut covered: f64, enough: f64) -> TopP {
        let mut entries: Vec<TokenShare> =
            tokens.iter().zip(shares).map(|(&token, &share)| TokenShare { token, share }).collect();
        entries.sort_by(compare_shares);
        let mut count = 0;
        while count < entries.len() && covered <= enough {
            covered += entries[count].share;
            count += 1;
        }
        let mut taken: Vec<usize> = entries[..count].iter().map(|entry| entry.token).collect();
        taken.sort_unstable();
        TopP { taken, next: entries.get(count).map(|entry| entry.token) }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        /// Sums of whole numbers are exact, so the result equals that of a sort.
        #[test]
        fn buckets_agree_with_sorting(
            shares in prop::collection::vec(0_u16..999, 0..900),
            scale in prop::sample::select(vec![1.0, 0.001_953_125, 1e-30]),
            covered in 0_u16..50,
            part in 0.0_f64..1.1,
        ) {
            let tokens: Vec<usize> = (0..shares.len()).map(|place| 3 * place + 1).collect();
            let shares: Vec<f64> =
                shares.into_iter().map(|share| scale * f64::from(share)).collect();
            let covered = scale * f64::from(covered);
            let total: f64 = shares.iter().sum();
            let enough = (part * total / scale).floor() * scale;
            let mut fewest = TopP::new(&tokens, &shares, covered, enough);
            fewest.taken.sort_unstable();
            let expected = sort_all(&tokens, &shares, covered, enough);
            if scale < 1e-9 {
                // Sums are rounded, and may cross the number one token earlier or later.
                prop_assert!(fewest.taken.len().abs_diff(expected.taken.len()) <= 1);
            } else {
                prop_assert_eq!(fewest, expected);
            }
        }
    }
}
