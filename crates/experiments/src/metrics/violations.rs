//! How often a promise was violated.

use std::iter::Sum;

use serde::{Deserialize, Serialize};
use vattention_core::{Promise, Scope};

use super::{Evidence, LEVEL};

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

    /// How often a promise of that scope was violated, and of how often: in rows, or in steps.
    pub fn of(&self, scope: Scope) -> (usize, usize) {
        match scope {
            Scope::Row => (self.violated_rows, self.rows),
            Scope::Step => (self.violated_steps, self.steps),
        }
    }

    /// What they say of a promise's delta at [`LEVEL`], taken for independent of each other.
    pub fn evidence(&self, promise: &Promise) -> Evidence {
        let (violated, all) = self.of(promise.scope);
        Evidence::new(violated, all, promise.delta.get(), LEVEL)
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
        let (rows, steps) = (violations.of(Scope::Row), violations.of(Scope::Step));
        assert_eq!((rows, steps), ((144, 8000), (64, 1000)));
        let fraction = |x: f64| x.try_into().expect("a fraction");
        let promise = Promise::new(Target::Sdpa, fraction(0.1), fraction(0.02));
        assert_eq!(violations.evidence(&promise), Evidence::WithinDelta);
        let of_steps = Promise { scope: Scope::Step, ..promise };
        assert_eq!(violations.evidence(&of_steps), Evidence::Contradicted);
        let twice: Violations = [violations; 2].into_iter().sum();
        assert_eq!((twice.of(Scope::Row), twice.of(Scope::Step)), ((288, 16000), (128, 2000)));
    }
}
