//! `sub-gaussian`: `clt` with `√(2 ln(2/δ))` in place of the normal quantile.
//!
//! The paper calls this bound Hoeffding's inequality, but it uses the estimated standard deviation
//! in place of a range. The budget is `2 ln(2/δ) / z(δ)²` times that of `clt`, 2.8 times at δ =
//! 0.2.
//!
//! Cost: O(1) in addition to the statistics.
//!
//! # Guarantee
//! (docs/guarantees.md, section 4.) Asymptotic, as `clt`. The quantile is an upper bound for all
//! sub-Gaussian errors, so a normal error exceeds it with a probability below δ (0.032 at δ = 0.2).
//! The bound is conservative where the assumptions of `clt` hold, and can fail where they do not.
//!
//! "vAttention: Verified Sparse Attention" (2025), <https://arxiv.org/abs/2510.05688>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Goal, SampleStats,
    plugin::{Radius, SampleEvidence, Schedule, TunableGoal},
    register, typetag,
};

use crate::Terms;
use crate::formula::sub_gaussian;
use crate::moments::{ErrorQuantiles, radius};

/// The paper's "Hoeffding".
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SubGaussian(pub Terms);

#[typetag::serde(name = "sub-gaussian")]
impl Estimator for SubGaussian {
    fn radius(&self, stats: &SampleStats) -> Radius {
        radius(&self.0, stats, &QUANTILES)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.0.goal()
    }

    fn evidence(&self) -> SampleEvidence {
        self.0.mode.evidence()
    }

    fn schedule(&self) -> Schedule {
        self.0.mode.schedule(self.0.rounds)
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        Some(self.0.tunable())
    }
}

const QUANTILES: ErrorQuantiles<'_> =
    ErrorQuantiles { scalar: &sub_gaussian, vector: &sub_gaussian };

register!(
    Estimator,
    "sub-gaussian",
    SubGaussian,
    "clt with the tails of a sub-Gaussian error, which the paper calls Hoeffding"
);
