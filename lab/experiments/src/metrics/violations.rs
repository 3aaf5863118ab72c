//! Counts of violations of a promise.

use std::fmt;
use std::iter::Sum;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::{Promise, promise::Scope};

use super::{Evidence, LEVEL, binomial};

/// Numbers of rows and of steps that violated a promise. A row is a query head at one query, a step
/// is all query heads of a layer at one query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Violations {
    /// Number of rows measured.
    pub rows: usize,
    /// Number of rows whose error exceeded epsilon.
    pub violated_rows: usize,
    /// Number of steps measured.
    pub steps: usize,
    /// Number of steps in which the error of any row exceeded epsilon.
    pub violated_steps: usize,
}

impl Violations {
    /// Adds a step; `rows` has, for each row of the step, whether its error exceeds epsilon.
    pub fn add_step(&mut self, rows: impl IntoIterator<Item = bool>) {
        let mut violated = 0;
        for row in rows {
            self.rows += 1;
            violated += usize::from(row);
        }
        self.violated_rows += violated;
        self.steps += 1;
        self.violated_steps += usize::from(violated > 0);
    }

    /// Number of violations of a promise in the unit of its scope: rows or steps.
    pub fn count(&self, scope: Scope) -> ViolationCount {
        let (violated, checked) = match scope {
            Scope::Row => (self.violated_rows, self.rows),
            Scope::Step => (self.violated_steps, self.steps),
        };
        ViolationCount { unit: scope, violated, checked }
    }

    /// Evidence on a promise's delta at [`LEVEL`].
    ///
    /// Samples of different token lists, and of different steps, are assumed to be independent.
    /// Query heads that share a token list may violate a promise together, so each list counts
    /// once, by the share of its heads that violated the promise.
    pub fn evidence(&self, promise: &Promise, lists: ListCounts) -> Evidence {
        let ViolationCount { violated, checked, .. } = self.count(promise.scope);
        let delta = promise.delta.get();
        match promise.scope {
            Scope::Row => lists.evidence(violated, checked, delta),
            Scope::Step => Evidence::new(violated, checked, delta, LEVEL),
        }
    }
}

/// Number of violations of a promise, in the unit of its scope. All reports use this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ViolationCount {
    /// Unit: a row, or a step (all query heads of a layer at one query).
    pub unit: Scope,
    /// Number of units in which the error exceeded epsilon.
    pub violated: usize,
    /// Number of units whose errors were measured.
    pub checked: usize,
}

impl ViolationCount {
    /// Share of the units that violated the promise; 0 without units.
    pub fn share(&self) -> f64 {
        self.violated as f64 / self.checked.max(1) as f64
    }
}

impl fmt::Display for ViolationCount {
    /// Writes `4 of 256`, or `3 of 64 steps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Scope::Row => "",
            Scope::Step => " steps",
        };
        write!(f, "{} of {}{unit}", self.violated, self.checked)
    }
}

/// Number of token lists that rows attended to: the independent units among rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListCounts {
    /// Number of token lists; the lists of different steps are different.
    pub count: usize,
    /// Number of query heads that share a list; the largest, if layers differ.
    pub heads_per_list: usize,
}

impl ListCounts {
    /// Token lists of `rows` rows, where `heads_per_list` rows share a list.
    pub fn new(rows: usize, heads_per_list: usize) -> Self {
        Self { count: rows / heads_per_list, heads_per_list }
    }

    /// Returns the token lists of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            heads_per_list: self.heads_per_list.max(other.heads_per_list),
        }
    }

    /// Evidence on delta at [`LEVEL`], where `violated` of the `rows` of these lists violated the
    /// promise.
    pub(super) fn evidence(&self, violated: usize, rows: usize, delta: f64) -> Evidence {
        if self.heads_per_list <= 1 {
            return Evidence::new(violated, rows, delta, LEVEL);
        }
        let contradicted = self.p_value(violated, rows, delta) < LEVEL;
        Evidence::from_rate(contradicted, violated as f64 / rows as f64, delta)
    }

    /// Upper bound on the probability of at least `violated` violations among `rows` rows, each of
    /// which violates the promise with a probability of at most delta.
    ///
    /// Each list contributes the number of its violating heads over `heads_per_list`, a number in
    /// `[0, 1]`.
    fn p_value(&self, violated: usize, rows: usize, delta: f64) -> f64 {
        let sum = violated / self.heads_per_list;
        // The mean is delta, unless some lists have fewer heads.
        let mean = delta * rows as f64 / (self.count * self.heads_per_list) as f64;
        binomial::bounded_sum_p_value(sum, self.count, mean)
    }
}

impl Sum for Violations {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            rows: sum.rows + one.rows,
            violated_rows: sum.violated_rows + one.violated_rows,
            steps: sum.steps + one.steps,
            violated_steps: sum.violated_steps + one.violated_steps,
        })
    }
}

#[cfg(test)]
mod tests {
    use vattention_core::Target;

    use super::*;

    /// 1,000 steps of eight heads: 1.8 % of the rows and 6.4 % of the steps violate the promise.
    #[test]
    fn a_small_share_of_rows_may_violate_a_large_share_of_steps() {
        let mut violations = Violations::default();
        for step in 0..1000 {
            let violated = match step {
                0..40 => 3,
                40..64 => 1,
                _ => 0,
            };
            violations.add_step((0..8).map(|head| head < violated));
        }
        let count = |scope| violations.count(scope).to_string();
        assert_eq!([count(Scope::Row), count(Scope::Step)], ["144 of 8000", "64 of 1000 steps"]);
        let fraction = |x: f64| x.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, fraction(0.1), fraction(0.02));
        let lists = ListCounts::new(8000, 4);
        assert_eq!(violations.evidence(&promise, lists), Evidence::WithinDelta);
        let per_step = Promise { scope: Scope::Step, ..promise };
        assert_eq!(violations.evidence(&per_step, lists), Evidence::Contradicted);
        let twice: Violations = [violations; 2].into_iter().sum();
        let count = |scope| twice.count(scope).to_string();
        assert_eq!([count(Scope::Row), count(Scope::Step)], ["288 of 16000", "128 of 2000 steps"]);
    }

    /// Evidence from 64 steps of sixteen heads, where all heads violate the promise in `violated`
    /// steps.
    fn evidence_from_identical_heads(violated: usize, heads_per_list: usize) -> Evidence {
        let mut violations = Violations::default();
        for step in 0..64 {
            violations.add_step([step < violated; 16]);
        }
        let tenth = 0.1.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, tenth, tenth);
        violations.evidence(&promise, ListCounts::new(violations.rows, heads_per_list))
    }

    /// `P(Binomial(64, 0.1) ≥ 21)` is 5.6e-7, and e times this probability is above 1e-6.
    #[test]
    fn a_token_list_counts_once() {
        assert_eq!(evidence_from_identical_heads(6, 16), Evidence::WithinDelta);
        assert_eq!(evidence_from_identical_heads(21, 16), Evidence::AboveDelta);
        assert_eq!(evidence_from_identical_heads(22, 16), Evidence::Contradicted);
        assert_eq!(
            evidence_from_identical_heads(11, 1),
            Evidence::Contradicted,
            "176 of 1024 rows"
        );
    }

    /// Sixteen heads always violate the promise together, at a rate below the promised delta: the
    /// test computes the exact probability that the kept promise is contradicted.
    #[test]
    fn a_kept_promise_is_not_contradicted_by_heads_that_share_lists() {
        let false_alarm = |heads_per_list| {
            let least = (0..=64).find(|&count| {
                evidence_from_identical_heads(count, heads_per_list) == Evidence::Contradicted
            });
            binomial::p_value(least.expect("a count that contradicts"), 64, 0.09)
        };
        assert!(false_alarm(16) < LEVEL, "{}", false_alarm(16));
        assert!(false_alarm(1) > 0.02, "rows are not independent: {}", false_alarm(1));
    }

    #[test]
    fn lists_of_different_sizes_are_tested_by_the_largest() {
        // All of 40 lists of one head violate the promise, and none of 60 lists of four heads: a
        // rate of 1/7.
        let lists = ListCounts::new(40, 1).and(ListCounts::new(240, 4));
        assert_eq!(lists, ListCounts { count: 100, heads_per_list: 4 });
        // A sum of 10 of 100 terms, of mean 0.07 where delta is 0.1.
        let expected = std::f64::consts::E * binomial::p_value(10, 100, 0.07);
        assert!((lists.p_value(40, 280, 0.1) - expected).abs() < 1e-12);
    }
}
