//! How often a promise was violated.

use std::fmt;
use std::iter::Sum;

use serde::{Deserialize, Serialize};
use vattention_core::{Promise, promise::Scope};

use super::{Evidence, LEVEL, binomial};

/// Rows and steps that violated a promise. A row is a query head at one query, a step all query heads of
/// a layer at one query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violations {
    /// Rows measured.
    pub rows: usize,
    /// Those whose error exceeded epsilon.
    pub violated_rows: usize,
    /// Steps measured.
    pub steps: usize,
    /// Those in which the error of any row exceeded epsilon.
    pub violated_steps: usize,
}

impl Violations {
    /// Adds a step, given of each of its rows whether its error exceeds epsilon.
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

    /// Violations of a promise in the unit of its scope: rows or steps.
    pub fn count(&self, scope: Scope) -> ViolationCount {
        let (violated, checked) = match scope {
            Scope::Row => (self.violated_rows, self.rows),
            Scope::Step => (self.violated_steps, self.steps),
        };
        ViolationCount { unit: scope, violated, checked }
    }

    /// Evidence on a promise's delta at [`LEVEL`].
    ///
    /// Samples of different token lists, and of different steps, are taken for independent. Query
    /// heads that share a list may violate a promise together, so a list counts once, by the share
    /// of its heads that violated it.
    pub fn evidence(&self, promise: &Promise, lists: TokenLists) -> Evidence {
        let ViolationCount { violated, checked, .. } = self.count(promise.scope);
        let delta = promise.delta.get();
        match promise.scope {
            Scope::Row => lists.evidence(violated, checked, delta),
            Scope::Step => Evidence::new(violated, checked, delta, LEVEL),
        }
    }
}

/// Number of violations of a promise, in the unit of its scope. All reports share this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationCount {
    /// Row, or step: all query heads of a layer at one query.
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
    /// `4 of 256`, or `3 of 64 steps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Scope::Row => "",
            Scope::Step => " steps",
        };
        write!(f, "{} of {}{unit}", self.violated, self.checked)
    }
}

/// Token lists that rows were read by: the independent units among rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLists {
    /// Lists, each of one step.
    pub count: usize,
    /// Query heads that share a list; of layers that differ, the most.
    pub heads_per_list: usize,
}

impl TokenLists {
    /// The lists of some rows of which `heads_per_list` share one.
    pub fn new(rows: usize, heads_per_list: usize) -> Self {
        Self { count: rows / heads_per_list, heads_per_list }
    }

    /// The lists of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            heads_per_list: self.heads_per_list.max(other.heads_per_list),
        }
    }

    /// Evidence on delta at [`LEVEL`], where `violated` of the `rows` of these lists failed.
    pub(super) fn evidence(&self, violated: usize, rows: usize, delta: f64) -> Evidence {
        if self.heads_per_list <= 1 {
            return Evidence::new(violated, rows, delta, LEVEL);
        }
        let contradicted = self.p_value(violated, rows, delta) < LEVEL;
        Evidence::from_rate(contradicted, violated as f64 / rows as f64, delta)
    }

    /// Bound on the probability of at least `violated` violated rows of `rows`, each violated with
    /// probability delta at most.
    ///
    /// A list contributes its violated heads over `heads_per_list`, a number in `[0, 1]`.
    fn p_value(&self, violated: usize, rows: usize, delta: f64) -> f64 {
        let sum = violated / self.heads_per_list;
        // Delta, unless some lists have fewer heads.
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

    /// 1,000 steps of eight heads: 1.8 % of the rows are violated, each in another step but for 80.
    #[test]
    fn a_few_rows_may_be_many_steps() {
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
        let lists = TokenLists::new(8000, 4);
        assert_eq!(violations.evidence(&promise, lists), Evidence::WithinDelta);
        let of_steps = Promise { scope: Scope::Step, ..promise };
        assert_eq!(violations.evidence(&of_steps, lists), Evidence::Contradicted);
        let twice: Violations = [violations; 2].into_iter().sum();
        let count = |scope| twice.count(scope).to_string();
        assert_eq!([count(Scope::Row), count(Scope::Step)], ["288 of 16000", "128 of 2000 steps"]);
    }

    /// The evidence of 64 steps of sixteen heads that are all violated in `violated` of them.
    fn evidence_of_alike_heads(violated: usize, heads_per_list: usize) -> Evidence {
        let mut violations = Violations::default();
        for step in 0..64 {
            violations.add_step([step < violated; 16]);
        }
        let tenth = 0.1.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, tenth, tenth);
        violations.evidence(&promise, TokenLists::new(violations.rows, heads_per_list))
    }

    /// `P(Binomial(64, 0.1) ≥ 21)` is 5.6e-7, and e times that is above 1e-6.
    #[test]
    fn a_list_counts_once() {
        assert_eq!(evidence_of_alike_heads(6, 16), Evidence::WithinDelta);
        assert_eq!(evidence_of_alike_heads(21, 16), Evidence::AboveDelta);
        assert_eq!(evidence_of_alike_heads(22, 16), Evidence::Contradicted);
        assert_eq!(evidence_of_alike_heads(11, 1), Evidence::Contradicted, "176 of 1024 rows");
    }

    /// Sixteen heads that always fail together, at a rate below the delta promised: the exact
    /// probability that a judge contradicts the kept promise.
    #[test]
    fn a_kept_promise_is_not_contradicted_by_heads_that_share_lists() {
        let false_alarm = |heads_per_list| {
            let least = (0..=64).find(|&count| {
                evidence_of_alike_heads(count, heads_per_list) == Evidence::Contradicted
            });
            binomial::p_value(least.expect("a count that contradicts"), 64, 0.09)
        };
        assert!(false_alarm(16) < LEVEL, "{}", false_alarm(16));
        assert!(false_alarm(1) > 0.02, "rows are not independent: {}", false_alarm(1));
    }

    #[test]
    fn lists_of_different_sizes_are_judged_by_the_largest() {
        // 40 lists of one head, all violated, and 60 of four heads, none violated: a rate of 1/7.
        let lists = TokenLists::new(40, 1).and(TokenLists::new(240, 4));
        assert_eq!(lists, TokenLists { count: 100, heads_per_list: 4 });
        // A sum of 10 of 100 terms, of mean 0.07 where delta is 0.1.
        let expected = std::f64::consts::E * binomial::p_value(10, 100, 0.07);
        assert!((lists.p_value(40, 280, 0.1) - expected).abs() < 1e-12);
    }
}
