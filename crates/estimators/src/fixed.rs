//! `fixed`: a sample of a given size.
//!
//! `b = size`, a fraction being of the visible tokens. There is no base sample and no second
//! look.
//!
//! Cost: O(1) per row.
//!
//! # Guarantee
//! None. The estimate is unbiased in `N` and `D`, of unknown error.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Assumptions, Budget, BudgetEstimator, ClosedForm, Kind, Promise, SampleStats, Size, register,
    typetag,
};

/// Draws exactly `size` tokens of the residual, or all if there are fewer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fixed {
    /// How many tokens.
    pub size: Size,
}

#[typetag::serde(name = "fixed")]
impl BudgetEstimator for Fixed {
    fn budget(&self, stats: &SampleStats) -> Budget {
        Budget { tokens: self.size.of(stats.visible), kind: Kind::None, assumes: Assumptions::NONE }
    }

    fn promise(&self) -> Option<Promise> {
        None
    }

    fn rounds(&self) -> usize {
        0
    }

    fn closed_form(&self, _: usize, _: usize) -> Option<ClosedForm> {
        Some(ClosedForm::Size(self.size))
    }
}

register!(Estimator, "fixed", Fixed, "a sample of a given size, without a promise");
