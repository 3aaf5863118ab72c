//! `chebyshev`: the output's error by Chebyshev's inequality, without assuming that sums are
//! normal.
//!
//! With `W^` as in `ratio`, `Pr(|W^| > r) ≤ V_W / r²`, so the relative error exceeds
//! `√(V_W / δ) / |N|` with probability at most δ, up to the error of `D^`, which is of second
//! order.
//!
//! Cost: O(1), in addition to the statistics.
//!
//! # Guarantee
//! Asymptotic: it assumes that the moments are as estimated, and that the sample shows the tail.
//! The sample is several times that of `ratio`.

use serde::{Deserialize, Serialize};
use vattention::plugin::{
    ALLOWANCE, Assumption, Assumptions, Estimator, Fraction, Goal, Kind, Promise, Radius,
    SampleStats, Target, TunableGoal, register, schemars, typetag,
};

/// Configuration of `chebyshev`.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chebyshev {
    /// Allowed relative error.
    pub epsilon: Fraction,
    /// Probability with which the error may exceed `epsilon`.
    pub delta: Fraction,
}

#[typetag::serde(name = "chebyshev")]
impl Estimator for Chebyshev {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let (b, n_s) = (stats.b as f64, stats.n_s as f64);
        let variance =
            n_s * n_s * (1.0 / b - 1.0 / n_s) * stats.with_raised_variances(ALLOWANCE).trace_w;
        let to_estimate = (variance / self.delta.get()).sqrt() / stats.norm_n;
        // Errors of `to_estimate |o^|` leave no output shorter than `(1 − to_estimate) |o^|`.
        let relative =
            if to_estimate < 1.0 { to_estimate / (1.0 - to_estimate) } else { f64::INFINITY };
        let assumes =
            Assumptions::only(Assumption::Moments) | Assumptions::only(Assumption::TailSeen);
        Radius::new(relative, Kind::Asymptotic, assumes)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(Promise::new(Target::Sdpa, self.epsilon, self.delta).into())
    }

    fn tunable(&mut self) -> Option<TunableGoal<'_>> {
        let Self { epsilon, delta } = self;
        Some(TunableGoal { epsilon: Some(epsilon), size: None, delta })
    }
}

register!(Estimator, "chebyshev", Chebyshev, "Chebyshev's inequality, which needs no normal sums");

#[cfg(test)]
fn with_tenths() -> Chebyshev {
    let tenth = Fraction::try_from(0.1).unwrap();
    Chebyshev { epsilon: tenth, delta: tenth }
}

#[cfg(test)]
vattention_testkit::estimator_laws!(a_tenth, with_tenths());
