//! Test of all rows together.
//!
//! If each row has few samples, no single row can contradict delta, even if all its samples violate
//! the promise. A count that is pooled over queries may hide rows that always violate the promise.
//! The test of all rows together detects such rows: if the promise is kept, a row with `k` samples
//! has `j` or more violations with a probability of at most `P(Binomial(k, delta) ≥ j)`.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::metrics::{LEVEL, binomial};

/// Samples of the rows that share a token list (a layer's step, under scope `step`) at one query.
/// Units are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleUnit {
    /// Number of samples.
    pub samples: usize,
    /// Number of rows that share each sample.
    pub heads: usize,
    /// Largest number of violations of any row.
    pub violations: usize,
}

/// Test of all rows together: the number of units in which a row has at least `j` violations is
/// tested for each `j` up to the number of samples of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RowsTogether {
    /// Number of sampled units: token lists at one query, or steps of a layer.
    pub units: usize,
    /// Largest number of rows that share a unit's samples.
    pub heads: usize,
    /// Largest number of samples of a unit, which is the number of counts tested.
    pub samples: usize,
    /// Significance level, [`LEVEL`] over the number of counts tested: smaller p-values contradict
    /// delta.
    pub limit: f64,
    /// Count with the smallest p-value; `None` without violations.
    pub worst: Option<UnitsViolated>,
}

/// Number of units in which a row has at least some number of violations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct UnitsViolated {
    /// Number of violations.
    pub at_least: usize,
    /// Number of units in which a row has at least that number of violations.
    pub units: usize,
    /// Largest number of units that does not contradict delta.
    pub allowed: usize,
    /// Upper bound on the probability of at least that number of units, if the promise is kept.
    pub p_value: f64,
}

impl RowsTogether {
    /// Tests the units that have samples.
    ///
    /// Cost: O(units) for each distinct number of violations.
    pub(super) fn new(units: &[SampleUnit], delta: f64) -> Self {
        let sampled: Vec<SampleUnit> =
            units.iter().copied().filter(|unit| unit.samples > 0).collect();
        let samples = sampled.iter().map(|unit| unit.samples).max().unwrap_or(0);
        let heads = sampled.iter().map(|unit| unit.heads).max().unwrap_or(0);
        let limit = LEVEL / samples.max(1) as f64;
        // Between two of these numbers the count of units is the same, and its p-value is larger.
        let numbers: BTreeSet<usize> = sampled
            .iter()
            .map(|unit| unit.violations)
            .filter(|&violations| violations > 0)
            .collect();
        let counts = numbers
            .into_iter()
            .map(|at_least| UnitsViolated::new(&sampled, at_least, delta, limit));
        let worst = counts.min_by(|a, b| a.p_value.total_cmp(&b.p_value));
        Self { units: sampled.len(), heads, samples, limit, worst }
    }

    /// Returns true if the units contradict delta.
    pub fn contradicts(&self) -> bool {
        self.p_value() < self.limit
    }

    /// Smallest p-value; 1 without violations.
    pub(super) fn p_value(&self) -> f64 {
        self.worst.map_or(1.0, |worst| worst.p_value)
    }
}

impl UnitsViolated {
    fn new(units: &[SampleUnit], at_least: usize, delta: f64, limit: f64) -> Self {
        let rate = mean_rate(units, at_least, delta);
        let p_value = |count| binomial::mixed_p_value(count, units.len(), rate);
        let violated = units.iter().filter(|unit| unit.violations >= at_least).count();
        let contradicts = |count: usize| p_value(count) < limit;
        let allowed = if contradicts(units.len()) {
            binomial::first_true(0, units.len(), contradicts) - 1
        } else {
            units.len()
        };
        Self { at_least, units: violated, allowed, p_value: p_value(violated) }
    }
}

/// Mean over units of an upper bound on the probability that any row of the unit has at least
/// `at_least` violations: the sum of the probabilities of the unit's rows.
fn mean_rate(units: &[SampleUnit], at_least: usize, delta: f64) -> f64 {
    let mut alike: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for unit in units {
        *alike.entry((unit.samples, unit.heads)).or_default() += 1;
    }
    let expected = alike.into_iter().map(|((samples, heads), count)| {
        let of_row = binomial::p_value(at_least, samples, delta);
        count as f64 * (heads as f64 * of_row).min(1.0)
    });
    expected.sum::<f64>() / units.len() as f64
}

#[cfg(test)]
mod tests {
    use vattention_core::{Shape, Site, step::Stream};

    use super::*;

    fn units(count: usize, samples: usize, violations: usize) -> Vec<SampleUnit> {
        vec![SampleUnit { samples, heads: 1, violations }; count]
    }

    /// 2,000 samples of 1,000 rows, of which 90 always violate the promise.
    #[test]
    fn rows_that_always_violate_a_promise_contradict_delta_together() {
        let all = [units(90, 2, 2), units(910, 2, 0)].concat();
        let test = RowsTogether::new(&all, 0.1);
        let worst = test.worst.unwrap();
        assert_eq!((test.units, test.samples, test.limit), (1000, 2, LEVEL / 2.0));
        assert_eq!((worst.at_least, worst.units), (2, 90));
        assert!(test.contradicts() && worst.p_value < 1e-40, "{worst:?}");
        // The expected number is ten. The exact tail of 1,000 trials of rate 0.01 decides.
        assert!(binomial::p_value(worst.allowed, 1000, 0.01) >= LEVEL / 2.0);
        assert!(binomial::p_value(worst.allowed + 1, 1000, 0.01) < LEVEL / 2.0);
        let as_allowed = [units(worst.allowed, 2, 2), units(1000 - worst.allowed, 2, 0)].concat();
        assert!(!RowsTogether::new(&as_allowed, 0.1).contradicts());
        let more = [units(worst.allowed + 1, 2, 2), units(999 - worst.allowed, 2, 0)].concat();
        assert!(RowsTogether::new(&more, 0.1).contradicts());
    }

    /// In 3 % of the rows, nine of ten samples violate the promise; no row always violates it.
    #[test]
    fn rows_that_nearly_always_violate_a_promise_are_detected() {
        let all = [units(30, 10, 9), units(970, 10, 0)].concat();
        let worst = RowsTogether::new(&all, 0.1).worst.unwrap();
        assert_eq!((worst.at_least, worst.units), (9, 30));
        assert!(RowsTogether::new(&all, 0.1).contradicts());
    }

    #[test]
    fn rows_that_share_samples_may_violate_a_promise_together() {
        let shared = |heads| SampleUnit { samples: 2, heads, violations: 2 };
        let kept = SampleUnit { violations: 0, ..shared(8) };
        let all =
            |heads| [vec![shared(heads); 50], vec![SampleUnit { heads, ..kept }; 950]].concat();
        assert!(RowsTogether::new(&all(1), 0.1).contradicts(), "ten are expected");
        assert!(!RowsTogether::new(&all(8), 0.1).contradicts(), "eighty are allowed");
    }

    /// Units without samples are ignored, and units with fewer samples have a lower rate.
    #[test]
    fn each_unit_is_tested_by_its_own_number_of_samples() {
        let rate = |all: &[SampleUnit]| mean_rate(all, 2, 0.1);
        let mixed = [units(10, 1, 0), units(30, 2, 0)].concat();
        assert!((rate(&mixed) - 0.75 * 0.01).abs() < 1e-15);
        let all = [mixed, units(7, 0, 0)].concat();
        let test = RowsTogether::new(&all, 0.1);
        assert_eq!((test.units, test.worst), (40, None));
        assert!(!test.contradicts() && !RowsTogether::new(&[], 0.1).contradicts());
    }

    /// Dependence of the violations of a unit's heads.
    #[derive(Clone, Copy, Debug)]
    enum Heads {
        Together,
        Independently,
    }

    /// Simulates units with `samples` samples, each of which violates the promise with probability
    /// 0.1.
    fn simulate(
        trace: u32,
        count: usize,
        samples: usize,
        (heads, relation): (usize, Heads),
    ) -> Vec<SampleUnit> {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let site = Site { seed: 7, sequence: trace, layer: samples, kv_head: 0, shape };
        let mut words = Stream::new(&site, 0, 0, 0).words();
        let mut violations_of_head = || {
            let drawn = words.by_ref().take(samples);
            drawn.filter(|&word| f64::from(word) < 0.1 * f64::from(u32::MAX)).count()
        };
        let different = match relation {
            Heads::Together => 1,
            Heads::Independently => heads,
        };
        let mut violations = || (0..different).map(|_| violations_of_head()).max().unwrap();
        (0..count).map(|_| SampleUnit { samples, heads, violations: violations() }).collect()
    }

    /// 2,000 traces of 125 token lists, each shared by sixteen heads that violate a promise
    /// together with probability delta, or independently of each other.
    #[test]
    fn kept_promises_are_not_contradicted_by_shared_samples() {
        let (mut alarms, mut alarms_of_rows) = (0, 0);
        for trace in 0..2000 {
            let independent = simulate(trace, 125, 2, (16, Heads::Independently));
            alarms += usize::from(RowsTogether::new(&independent, 0.1).contradicts());
            let lists = simulate(trace, 125, 2, (16, Heads::Together));
            alarms += usize::from(RowsTogether::new(&lists, 0.1).contradicts());
            let rows_of = |list: &SampleUnit| vec![SampleUnit { heads: 1, ..*list }; list.heads];
            let rows: Vec<SampleUnit> = lists.iter().flat_map(rows_of).collect();
            alarms_of_rows += usize::from(RowsTogether::new(&rows, 0.1).contradicts());
        }
        assert_eq!(alarms, 0, "each has a probability of 1e-6 at most");
        assert!(alarms_of_rows > 100, "rows are not independent: {alarms_of_rows}");
    }

    /// 2,000 traces of 300 rows of one head, which violate a promise with probability delta.
    #[test]
    fn kept_promises_are_not_contradicted_by_single_rows() {
        for samples in [1, 2, 6] {
            let contradicts = |&trace: &u32| {
                RowsTogether::new(&simulate(trace, 300, samples, (1, Heads::Together)), 0.1)
                    .contradicts()
            };
            assert_eq!((0..2000).filter(contradicts).count(), 0, "{samples} samples");
        }
    }
}
