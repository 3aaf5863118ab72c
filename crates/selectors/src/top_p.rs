//! The fewest tokens that hold a share of the attention: what the top-p selectors have in common.

use std::cmp::Ordering;

use vattention_core::{
    Row,
    step::{Score, exponentials, largest, sum},
};

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
        let weights = exponentials(&logits, largest(&logits).into(), 1.0);
        let total = sum(&weights);
        for (share, weight) in shares.iter_mut().zip(weights) {
            *share += weight / total;
        }
    }
    shares
}

/// Buckets that the shares between a power of two and the next one fall into.
const PER_OCTAVE: u32 = 8;

/// Least bucket: of the shares below 2^-64.
const FIRST: usize = (1023 - 64) * PER_OCTAVE as usize;

/// Number of buckets: the shares from 2^8 on are in the last one.
const BUCKETS: usize = (64 + 8) * PER_OCTAVE as usize + 1;

/// The fewest tokens whose shares exceed a number, by falling share, lower tokens first among equals.
/// Shares are summed in buckets; only the bucket in which the number is exceeded is sorted.
#[derive(Debug, PartialEq)]
pub(crate) struct Fewest {
    /// The tokens, in no particular order.
    pub(crate) taken: Vec<usize>,
    /// The token of the largest share left over, if there is one.
    pub(crate) next: Option<usize>,
}

impl Fewest {
    /// The fewest of some tokens whose `shares`, together with what is `covered` already, exceed
    /// `enough`; all if these do not.
    pub(crate) fn new(tokens: &[usize], shares: &[f64], covered: f64, enough: f64) -> Self {
        let Some((crossing, covered)) = find_crossing(shares, covered, enough) else {
            return Self { taken: tokens.to_vec(), next: None };
        };
        let (mut taken, mut undecided, mut below) = (Vec::new(), Vec::new(), None);
        for (&token, &share) in tokens.iter().zip(shares) {
            let (place, entry) = (bucket(share), Entry { token, share });
            if place > crossing {
                taken.push(token);
            } else if place == crossing {
                undecided.push(entry);
            } else if below.is_none_or(|best| by_share(&entry, &best) == Ordering::Less) {
                below = Some(entry);
            }
        }
        undecided.sort_unstable_by(by_share);
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

/// A token and its share.
#[derive(Clone, Copy)]
struct Entry {
    token: usize,
    share: f64,
}

/// The bucket within which the sum of `shares`, from the largest on, and of what is `covered`
/// already exceeds `enough`, and the sum before it.
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

/// The bucket of a share that is not negative; larger shares are in higher ones.
fn bucket(share: f64) -> usize {
    let mantissa_bits = f64::MANTISSA_DIGITS - 1 - PER_OCTAVE.ilog2();
    let place = (share.to_bits() >> mantissa_bits) as usize;
    place.saturating_sub(FIRST).min(BUCKETS - 1)
}

fn by_share(a: &Entry, b: &Entry) -> Ordering {
    b.share.total_cmp(&a.share).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, by sorting all tokens.
    fn by_sorting(tokens: &[usize], shares: &[f64], mut covered: f64, enough: f64) -> Fewest {
        let mut entries: Vec<Entry> =
            tokens.iter().zip(shares).map(|(&token, &share)| Entry { token, share }).collect();
        entries.sort_by(by_share);
        let mut count = 0;
        while count < entries.len() && covered <= enough {
            covered += entries[count].share;
            count += 1;
        }
        let mut taken: Vec<usize> = entries[..count].iter().map(|entry| entry.token).collect();
        taken.sort_unstable();
        Fewest { taken, next: entries.get(count).map(|entry| entry.token) }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        /// Sums of whole numbers are exact, so the tokens are those of a sort.
        #[test]
        fn the_fewest_are_those_of_a_sort(
            shares in prop::collection::vec(0_u16..999, 0..900),
            scale in prop::sample::select(vec![1.0, 0.001_953_125, 1e-30]),
            covered in 0_u16..50,
            part in 0.0_f64..1.1,
        ) {
            let tokens: Vec<usize> = (0..shares.len()).map(|place| 3 * place + 1).collect();
            let shares: Vec<f64> = shares.into_iter().map(|share| scale * f64::from(share)).collect();
            let covered = scale * f64::from(covered);
            let total: f64 = shares.iter().sum();
            let enough = (part * total / scale).floor() * scale;
            let mut fewest = Fewest::new(&tokens, &shares, covered, enough);
            fewest.taken.sort_unstable();
            let expected = by_sorting(&tokens, &shares, covered, enough);
            if scale < 1e-9 {
                // Sums are rounded, and may exceed the number one token earlier or later.
                prop_assert!(fewest.taken.len().abs_diff(expected.taken.len()) <= 1);
            } else {
                prop_assert_eq!(fewest, expected);
            }
        }
    }
}
