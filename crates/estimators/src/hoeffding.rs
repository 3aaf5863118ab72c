//! `hoeffding`: bounds from a range that is known, not estimated.
//!
//! The range of `e` over the residual is `[0, B]`, `B` being the largest weight that an untaken
//! token can have, which an exact selector (`oracle-top-k`, `score = "head"`) tells.
//!
//! | target        | budget                                                                           |
//! |---------------|----------------------------------------------------------------------------------|
//! | `denominator` | Hoeffding: `b = ½ ln(2/δ) (n_s B / (ε D_f))²`, `D_f ≤ D` the certain tokens' part |
//! | `numerator`   | McDiarmid: radius `M + 2M √(ln(1/δ)/2)` of a mean of vectors `|e v| ≤ M = B max|v|` |
//! | `sdpa`        | both, with the best split of δ                                                   |
//!
//! With `correction = "finite"`, Serfling's factor and its like for vectors. With `combine =
//! "paper"`, `D^` stands for `D_f`.
//!
//! A proved budget is drawn exactly: `rounds` and the base sample play no part in it.
//!
//! Cost: O(1) for the denominator; O(b log n_s) for the others, to solve for `b`.
//!
//! # Guarantee
//! (eq. 14, 15.) `denominator` (not `combine = "paper"`): finite-sample. Nothing in the bound is estimated, so
//! `Pr(|D^ − D| > ε D) ≤ δ` holds for every input; the budget is known before anything is drawn.
//! `numerator`, `sdpa`: asymptotic, since `|N^|` and `D^` come from the sample; and mostly vacuous,
//! they read nearly everything. Without an exact selector there is no range: everything is read.
//!
//! Hoeffding (1963); Serfling (1974); Bardenet, Maillard (2015); McDiarmid (1989).

use std::num::NonZeroU8;

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Assumption, Assumptions, Budget, BudgetEstimator, ClosedForm, Demand, Denominator, Formula,
    Fraction, Kind, Needs, Numerator, Population, Radius, SampleStats, Scope, Size, Target,
    TunableDemand, register, typetag,
};

use crate::conversion::Conversion;
use crate::formula::{
    fewest_draws, hoeffding, hoeffding_radius, mcdiarmid_radius, mcdiarmid_radius_of, sdpa,
    sdpa_error, serfling, serfling_factor, whole_tokens,
};
use crate::goal::Goal;
use crate::splits::{Quantiles, splits};
use crate::terms::default_rounds;
use crate::{Combine, Correction};

/// Bounds from a proved range.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hoeffding {
    /// What is to be within epsilon.
    pub target: Target,
    /// The relative error allowed: a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<Fraction>,
    /// Tokens of every sample, instead: the error bar says what they bought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// The most tokens of a sample. Where they do not suffice, nothing is promised, and the error bar says
    /// what they bought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// The probability with which the error may exceed epsilon, or its bar.
    pub delta: Fraction,
    /// Whether delta is of each query head, or of all of a layer together.
    #[serde(default)]
    pub scope: Scope,
    /// Which constants to use.
    #[serde(default)]
    pub combine: Combine,
    /// Whether to use that the residual is finite.
    #[serde(default)]
    pub correction: Correction,
    /// How often the sample may be looked at, at least 1, if the budget depends on it.
    #[serde(default = "default_rounds")]
    pub rounds: NonZeroU8,
}

impl Hoeffding {
    /// A promise with every default.
    pub fn new(target: Target, epsilon: Fraction, delta: Fraction) -> Self {
        Self {
            target,
            epsilon: Some(epsilon),
            size: None,
            limit: None,
            delta,
            scope: Scope::default(),
            combine: Combine::default(),
            correction: Correction::default(),
            rounds: default_rounds(),
        }
    }

    /// Whether the budget is known before anything is drawn.
    fn proved(&self) -> bool {
        self.target == Target::Denominator && self.combine == Combine::Exact
    }

    /// What the promise rests on, and what it takes for granted.
    fn ground(&self) -> (Kind, Assumptions) {
        if self.proved() {
            (Kind::FiniteSample, Assumptions::NONE)
        } else {
            (Kind::Asymptotic, Assumptions::of(Assumption::Moments))
        }
    }

    /// Norms are estimated, and the errors' distribution is not known. A proved denominator's error is
    /// relative to a lower bound.
    fn conversion(&self) -> Conversion {
        match (self.target, self.combine) {
            (Target::Denominator, _) | (_, Combine::Paper) => Conversion::None,
            (Target::Numerator | Target::Sdpa, Combine::Exact) => Conversion::Sure,
        }
    }

    fn error(&self, stats: &SampleStats, goal: &Goal, bound: f64) -> f64 {
        let vectors = Vectors::new(stats, bound);
        let draws = stats.b as f64;
        let shrink = match self.correction {
            Correction::Finite => serfling_factor(draws, stats.n_s as f64).max(0.0),
            Correction::None => 1.0,
        };
        let d = if self.proved() { stats.d_certain } else { stats.d };
        let one = |delta: f64| stats.n_s as f64 * hoeffding_radius(delta, bound) / d;
        let den = |delta: f64| one(delta) * (shrink / draws).sqrt();
        let num = |delta: f64| match self.correction {
            Correction::Finite => vectors.radius_of(stats.b, delta),
            Correction::None => vectors.radius(delta) / draws.sqrt(),
        };
        match self.target {
            Target::Denominator => den(goal.delta),
            Target::Numerator => num(goal.delta),
            Target::Sdpa => sdpa_error(self.combine.combination(), goal.delta, num, den),
        }
    }

    fn denominator(&self, stats: &SampleStats, goal: &Goal, bound: f64) -> usize {
        let d = if self.proved() { stats.d_certain } else { stats.d };
        let n_s = stats.n_s as f64;
        let tolerance = goal.epsilon * d;
        let infinite = hoeffding(goal.delta, n_s, bound, tolerance);
        let b = match self.correction {
            Correction::Finite => serfling(infinite, n_s),
            Correction::None => infinite,
        };
        whole_tokens(b, stats.n_s)
    }

    fn numerator(&self, stats: &SampleStats, goal: &Goal, bound: f64) -> usize {
        let &Goal { epsilon, delta, .. } = goal;
        let vectors = Vectors::new(stats, bound);
        match self.correction {
            Correction::None => whole_tokens((vectors.radius(delta) / epsilon).powi(2), stats.n_s),
            Correction::Finite => fewest_draws(stats.n_s, epsilon, |b| vectors.radius_of(b, delta)),
        }
    }

    fn sdpa(&self, stats: &SampleStats, goal: &Goal, bound: f64) -> usize {
        let &Goal { epsilon, delta, .. } = goal;
        let vectors = Vectors::new(stats, bound);
        let n_s = stats.n_s as f64;
        let den = |delta: f64| n_s * hoeffding_radius(delta, bound) / stats.d;
        let num = |delta: f64| vectors.radius(delta);
        let combination = self.combine.combination();
        let split = sdpa(combination, epsilon, delta, num, den);
        match self.correction {
            Correction::None => whole_tokens(split.b, stats.n_s),
            Correction::Finite => fewest_draws(stats.n_s, epsilon, |b| {
                let draws = b as f64;
                let shrink = (serfling_factor(draws, n_s).max(0.0) / draws).sqrt();
                let num = vectors.radius_of(b, split.delta_num);
                combination.error(num, den(split.delta_den) * shrink)
            }),
        }
    }
}

/// The vectors `e v` of the residual, all of norm at most `largest`, relative to `|N|`.
struct Vectors {
    n_s: usize,
    largest: f64,
}

impl Vectors {
    fn new(stats: &SampleStats, bound: f64) -> Self {
        let largest = stats.n_s as f64 * bound * stats.max_norm_v / stats.norm_n;
        Self { n_s: stats.n_s, largest }
    }

    /// At one draw out of infinitely many. The trace is at most `M²`, the diameter `2M`.
    fn radius(&self, delta: f64) -> f64 {
        mcdiarmid_radius(delta, self.largest.powi(2), 2.0 * self.largest)
    }

    /// At `b` draws out of `n_s`.
    fn radius_of(&self, b: usize, delta: f64) -> f64 {
        let n = self.n_s as f64;
        let trace = self.largest.powi(2) * n / (n - 1.0);
        mcdiarmid_radius_of(b, self.n_s, delta, trace, 2.0 * self.largest)
    }
}

#[typetag::serde(name = "hoeffding")]
impl BudgetEstimator for Hoeffding {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let (kind, assumes) = self.ground();
        let goal = &Goal::new(&self.demand(), stats);
        let conversion = self.conversion();
        let error = |bound: f64| conversion.bar(self.error(stats, goal, bound), goal.delta);
        Radius::new(stats.bound.map_or(f64::INFINITY, error), kind, assumes)
    }

    fn budget(&self, stats: &SampleStats) -> Budget {
        let (kind, assumes) = self.ground();
        let goal = &Goal::new(&self.demand(), stats);
        let tokens = |bound: f64| {
            let epsilon = self.conversion().invert(goal.epsilon, goal.delta);
            let goal = &Goal { epsilon, ..*goal };
            match self.target {
                Target::Denominator => self.denominator(stats, goal, bound),
                Target::Numerator => self.numerator(stats, goal, bound),
                Target::Sdpa => self.sdpa(stats, goal, bound),
            }
        };
        let tokens = stats.bound.map_or(stats.n_s, tokens);
        Budget { tokens, kind, assumes }
    }

    fn demand(&self) -> Demand {
        let &Self { target, delta, scope, epsilon, size, limit, .. } = self;
        Demand { target, delta, scope, epsilon, size, limit }
    }

    fn needs(&self) -> Needs {
        Needs::Range
    }

    fn rounds(&self) -> usize {
        if self.proved() { 0 } else { self.rounds.get().into() }
    }

    /// There is none where the fewest draws have to be searched.
    fn closed_form(&self, query_heads: usize, _: usize) -> Option<ClosedForm> {
        if let Some(size) = self.size {
            return Some(ClosedForm::Size(size));
        }
        let epsilon = self.epsilon.filter(|_| self.limit.is_none())?.get();
        let population = match (self.target, self.correction) {
            (_, Correction::None) => Population::Infinite,
            (Target::Denominator, Correction::Finite) => Population::Serfling,
            (Target::Numerator | Target::Sdpa, Correction::Finite) => return None,
        };
        let denominator = if self.proved() { Denominator::Proved } else { Denominator::Bounded };
        let delta = self.scope.share_of(self.delta.get(), query_heads);
        let epsilon = self.conversion().invert(epsilon, delta);
        let formula = Formula {
            numerator: Numerator::Bounded,
            denominator,
            epsilon,
            splits: splits(self.target, self.combine, (epsilon, delta), &QUANTILES),
            population,
            allowance: 0.0,
        };
        let (kind, assumes) = self.ground();
        Some(ClosedForm::Formula { formula, kind, assumes })
    }

    fn tunable(&mut self) -> Option<TunableDemand<'_>> {
        let Self { epsilon, size, delta, .. } = self;
        Some(TunableDemand { epsilon: epsilon.as_mut(), size: size.as_mut(), delta })
    }
}

/// Of numbers up to 1, and of vectors of norms up to 1.
const QUANTILES: Quantiles<'_> = Quantiles {
    scalar: &|delta| hoeffding_radius(delta, 1.0),
    vector: &|delta| mcdiarmid_radius(delta, 1.0, 2.0),
};

register!(
    Estimator,
    "hoeffding",
    Hoeffding,
    "from the proved range that an exact selector leaves; mostly vacuous but for the denominator"
);
