//! Texts of the largest length that fits into a number of tokens.

use std::ops::RangeInclusive;

use crate::{Case, Error, Result};

/// Number of measurements that interpolate; later ones bisect.
const SLOPES: usize = 12;

/// Limit of a text in tokens, by the caller's count.
#[derive(Clone, Copy)]
pub(crate) struct TokenLimit<'a> {
    pub(crate) tokens: usize,
    pub(crate) count: &'a dyn Fn(&str) -> usize,
}

impl TokenLimit<'_> {
    /// Returns the longest case of `make` that fits with its answer. `make` takes a number of
    /// units: sentences, needles or words. Counts the text O(log tokens) times.
    pub(crate) fn fill(
        self,
        task: &'static str,
        units: RangeInclusive<usize>,
        make: impl Fn(usize) -> Case,
    ) -> Result<Case> {
        let all = |case: &Case| self.count_prompt(case).saturating_add(case.tokens);
        largest(units, self.tokens, |n| all(&make(n))).map(&make).map_err(|least| Error::TooShort {
            task,
            tokens: self.tokens,
            least,
        })
    }

    /// Counts the tokens of a prompt; context and question are counted separately.
    pub(crate) fn count_prompt(self, case: &Case) -> usize {
        (self.count)(&case.context).saturating_add((self.count)(&case.question))
    }
}

/// Returns the largest number of units whose size is at most `limit`. If sizes do not grow with the
/// units, the result still fits, but may not be the largest.
///
/// Sizes are nearly proportional to units, so the next number to measure is interpolated between
/// two measurements. If this fails, bisection and doubling take over.
///
/// # Errors
/// The size of the least number of units, if it exceeds `limit`.
pub(crate) fn largest(
    units: RangeInclusive<usize>,
    limit: usize,
    mut size: impl FnMut(usize) -> usize,
) -> Result<usize, usize> {
    let (least, end) = (*units.start(), units.end() + 1);
    let mut low = (least, size(least));
    if low.1 > limit {
        return Err(low.1);
    }
    let (mut high, mut before) = ((end, None), None);
    for round in 0.. {
        let left = high.0 - low.0;
        if left <= 1 {
            break;
        }
        let other = high.1.map(|size| (high.0, size)).or(before);
        let step = match other {
            Some(other) if round < SLOPES => interpolate(low, other, limit),
            None if round == 0 => 8,
            _ if high.1.is_some() => left / 2,
            _ => 2 * (low.0 - least).max(8),
        };
        let next = low.0 + step.clamp(1, left - 1);
        let measured = size(next);
        if measured <= limit {
            before = Some(low);
            low = (next, measured);
        } else {
            high = (next, Some(measured));
        }
    }
    Ok(low.0)
}

/// Distance in units from `low` to the point where the line through both points reaches `limit`.
fn interpolate(low: (usize, usize), other: (usize, usize), limit: usize) -> usize {
    let units = low.0.abs_diff(other.0);
    let sizes = low.1.abs_diff(other.1).max(1);
    ((limit - low.1) as u128 * units as u128 / sizes as u128) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_size_is_returned_if_it_exceeds_the_limit() {
        assert_eq!(largest(3..=9, 10, |n| 10 * n), Err(30));
        assert_eq!(largest(1..=9, 10, |n| 10 * n), Ok(1));
        assert_eq!(largest(1..=9, 1000, |n| 10 * n), Ok(9));
        assert_eq!(largest(0..=0, 5, |_| 5), Ok(0));
    }

    #[test]
    fn proportional_sizes_are_measured_few_times() {
        for limit in [1000, 4096, 32768, 1 << 20] {
            let size = |n: usize| 200 + 13 * n + n.ilog2() as usize % 3;
            let mut calls = 0;
            let found = largest(1..=limit, limit, |n| {
                calls += 1;
                size(n)
            });
            assert_eq!(found.ok(), (1..=limit).rfind(|n| size(*n) <= limit));
            assert!(calls <= 7, "{limit}: {calls}");
        }
    }

    #[test]
    fn other_sizes_are_measured_few_times() {
        for limit in [100_000, 50_000_000, 1 << 40] {
            let mut calls = 0;
            let found = largest(0..=1 << 20, limit, |n| {
                calls += 1;
                n * n * n
            });
            assert_eq!(found.ok(), (0..1 << 20).rfind(|n| n * n * n <= limit));
            assert!(calls <= SLOPES + 2 * 20, "{limit}: {calls}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn any_growing_size_is_filled(
            steps in proptest::collection::vec(0usize..100, 1..400),
            least in 0usize..50,
            limit in 0usize..20000,
        ) {
            let mut sum = 0;
            let mut sizes = Vec::new();
            for step in steps {
                sum += step;
                sizes.push(sum);
            }
            let least = least.min(sizes.len() - 1);
            let calls = Cell::new(0);
            let size = |n: usize| {
                calls.set(calls.get() + 1);
                sizes[n]
            };
            let found = largest(least..=sizes.len() - 1, limit, size);
            let right = (least..sizes.len()).rfind(|n| sizes[*n] <= limit);
            prop_assert_eq!(found, right.ok_or(sizes[least]));
            prop_assert!(calls.get() <= SLOPES + 2 * 10, "{}", calls.get());
        }
    }
}
