//! The estimator plug-in: how many tokens a promise needs.

use std::fmt::Debug;

use crate::{Assumptions, ClosedForm, Kind, Promise, SampleStats};

/// Decides how many tokens of the residual must be in the sample.
#[typetag::serde(tag = "type")]
pub trait BudgetEstimator: Debug + Send + Sync {
    /// The number of tokens that the promise needs, judged from a sample; a pure function.
    ///
    /// The sampler clamps it to the residual.
    fn budget(&self, stats: &SampleStats) -> Budget;

    /// What is promised, if anything is.
    fn promise(&self) -> Option<Promise>;

    /// Whether it can promise nothing unless the selectors prove a bound on the logits that they
    /// leave ([`SelectorConfig::bounds_residual`](crate::SelectorConfig::bounds_residual)). A
    /// pipeline in which none does is refused.
    fn needs_bound(&self) -> bool {
        false
    }

    /// How often the sample may be looked at.
    ///
    /// 0: the budget follows from the certain part alone (`stats.b` is 0), there is no base
    /// sample, and exactly the budget is drawn.
    fn rounds(&self) -> usize {
        6
    }

    /// The formula of [`budget`](Self::budget), for a layer of `query_heads` whose values have
    /// `value_dim` numbers, if it is one that other machines know.
    ///
    /// May take tens of milliseconds.
    fn closed_form(&self, query_heads: usize, value_dim: usize) -> Option<ClosedForm> {
        let _ = (query_heads, value_dim);
        None
    }
}

/// An estimator's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens of the residual that the sample must hold.
    pub tokens: usize,
    /// What the promise rests on.
    pub kind: Kind,
    /// What it takes for granted.
    pub assumes: Assumptions,
}

impl Budget {
    /// What two readers of one list ask for together: the larger, on the weaker ground.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            kind: self.kind.min(other.kind),
            assumes: self.assumes | other.assumes,
        }
    }
}
