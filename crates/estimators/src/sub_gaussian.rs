//! `sub-gaussian`: `clt` with `√(2 ln(2/δ))` in place of the normal quantile.
//!
//! The paper calls this Hoeffding's inequality. It is not: the estimated deviation stands where a
//! range should. It is `2 ln(2/δ) / z(δ)²` times the budget of `clt`, 2.8 at δ = 0.2.
//!
//! Cost: O(1) beside the statistics.
//!
//! # Guarantee
//! (docs/guarantees.md, section 4.) Asymptotic, as `clt`: what is exceeded with probability δ by something with Gaussian tails is
//! exceeded by a Gaussian less often (0.032 at δ = 0.2), so it is conservative wherever `clt` is
//! right, and wrong where `clt` is.
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
use crate::moments::{Quantiles, radius};

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

const QUANTILES: Quantiles<'_> = Quantiles { scalar: &sub_gaussian, vector: &sub_gaussian };

register!(
    Estimator,
    "sub-gaussian",
    SubGaussian,
    "clt with the tail of a sub-Gaussian, what the paper calls Hoeffding"
);
