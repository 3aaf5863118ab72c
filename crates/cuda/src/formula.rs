//! Budgets as formulas of a few statistics, which the device evaluates instead of an estimator.

use std::any::Any;

use vattention_core::{
    Estimator, Kind, Size, Target,
    plugin::Schedule,
    promise::{Assumption, Assumptions, SampleGoal},
    sample::ALLOWANCE,
};
use vattention_estimators::formula::{
    DeltaSplit, c2, hoeffding_radius, mcdiarmid_radius, radius_of_bar, radius_of_sure_bar,
    sub_gaussian, z_two,
};
use vattention_estimators::{Clt, Combine, Correction, Hoeffding, Mode, Ratio, SubGaussian, Terms};

/// The size of a sample as the device computes it.
#[derive(Clone, Debug, PartialEq)]
pub enum ClosedForm {
    /// A fixed number of tokens, drawn in one step, without a promise.
    Size(Size),
    /// A formula of the sample's statistics.
    Formula {
        /// The formula.
        formula: Formula,
        /// Kind of guarantee.
        kind: Kind,
        /// Assumptions of the guarantee.
        assumes: Assumptions,
    },
}

/// Budget `b`, where `√b = min over splits of [√q s / ε + z s_D]`. `s` and `s_D` are the deviations
/// of the numerator and of the denominator at one draw. The budget is then reduced by the
/// finite-population correction and rounded up.
///
/// Both deviations follow from the variances of the sample, or from `B`, the largest `e` that an
/// untaken token can have, which selectors prove.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The definition of `s`.
    pub numerator: Numerator,
    /// The definition of `s_D`.
    pub denominator: Denominator,
    /// Allowed error, relative to the estimate.
    pub epsilon: f64,
    /// Ways to divide the failure probability; the formula uses the cheapest.
    pub splits: Vec<DeltaSplit>,
    /// Finite-population correction.
    pub population: Population,
    /// Number of their own standard errors by which variances are raised,
    /// as in [`SampleStats`](vattention_core::SampleStats::with_raised_variances); 0 leaves them as
    /// estimated.
    pub allowance: f64,
}

/// The deviation of the numerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerator {
    /// `n_s √Tr Cov(w) / |N^|`, the error of the output itself.
    Output,
    /// `n_s √Tr Cov(e v) / |N^|`.
    Estimated,
    /// `n_s B max|v| / |N^|`.
    Bounded,
}

/// The deviation of the denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denominator {
    /// `n_s σ / D`, with both estimated from the sample.
    Estimated,
    /// `n_s B / D`, with `D` estimated from the sample.
    Bounded,
    /// `n_s B / D_f`, which is known before anything is drawn: `D_f` is the part of `D` that the
    /// always-read tokens contribute.
    Proved,
}

/// Correction of the budget `b0` for an infinite population to a population of `n_s` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// `b0`.
    Infinite,
    /// `b0 / (1 + b0 / n_s)`, the correction for variances.
    Finite,
    /// Serfling's correction for ranges: the least `b` that is at least `b0 (1 − (b − 1) / n_s)`,
    /// or, beyond `n_s / 2`, `b0 (1 − b / n_s) (1 + 1 / b)`.
    Serfling,
}

impl Formula {
    /// Returns true if the formula needs a bound that selectors prove for the untaken tokens.
    pub fn needs_bound(&self) -> bool {
        self.numerator == Numerator::Bounded || self.denominator != Denominator::Estimated
    }

    /// Returns true if the formula needs a sample; otherwise the always-read tokens suffice.
    pub fn needs_sample(&self) -> bool {
        let numerator_counts = self.splits.iter().any(|split| split.cap > 0.0);
        numerator_counts || self.denominator != Denominator::Proved
    }
}

impl ClosedForm {
    /// Converts the budget of an estimator, for a layer of `query_heads` query heads whose values
    /// have `value_dim` elements. Returns `None` if there are no kernels for it. The conversion may
    /// take tens of milliseconds.
    pub fn from_estimator(
        estimator: &dyn Estimator,
        query_heads: usize,
        value_dim: usize,
    ) -> Option<Self> {
        let goal = estimator.goal().ok().filter(|goal| goal.reference.is_stored())?;
        let epsilon = match goal.sample {
            SampleGoal::Size { size } => return Some(Self::Size(size)),
            SampleGoal::Promise { limit: Some(_), .. } => return None,
            SampleGoal::Promise { epsilon, limit: None } => epsilon.get(),
        };
        let delta = goal.row_delta(query_heads);
        let estimator: &dyn Any = estimator;
        let (formula, kind, assumes) = if let Some(ratio) = estimator.downcast_ref::<Ratio>() {
            let formula = ratio_formula(ratio, epsilon, delta, value_dim)?;
            (formula, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(Clt(terms)) = estimator.downcast_ref() {
            let vector: &dyn Fn(f64) -> f64 = match terms.combine {
                Combine::Exact => &|delta| c2(delta, value_dim).sqrt(),
                Combine::Paper => &z_two,
            };
            let quantiles = DrawQuantiles { scalar: &z_two, vector };
            let formula = terms_formula(terms, epsilon, delta, &quantiles)?;
            (formula, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(SubGaussian(terms)) = estimator.downcast_ref() {
            let quantiles = DrawQuantiles { scalar: &sub_gaussian, vector: &sub_gaussian };
            let formula = terms_formula(terms, epsilon, delta, &quantiles)?;
            (formula, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(hoeffding) = estimator.downcast_ref::<Hoeffding>() {
            let formula = hoeffding_formula(hoeffding, epsilon, delta)?;
            if formula.denominator == Denominator::Proved {
                (formula, Kind::FiniteSample, Assumptions::NONE)
            } else {
                (formula, Kind::Asymptotic, Assumptions::only(Assumption::Moments))
            }
        } else {
            return None;
        };
        Some(Self::Formula { formula, kind, assumes })
    }
}

fn ratio_formula(ratio: &Ratio, epsilon: f64, delta: f64, value_dim: usize) -> Option<Formula> {
    (ratio.mode == Mode::Default).then(|| Formula {
        numerator: Numerator::Output,
        denominator: Denominator::Estimated,
        epsilon: radius_of_bar(epsilon, delta),
        splits: ratio.splits(delta, value_dim),
        population: Population::Finite,
        allowance: ALLOWANCE,
    })
}

/// The formula of `clt` and `sub-gaussian`.
fn terms_formula(
    terms: &Terms,
    epsilon: f64,
    delta: f64,
    quantiles: &DrawQuantiles<'_>,
) -> Option<Formula> {
    let (epsilon, allowance) = match terms.combine {
        Combine::Exact => (radius_of_bar(epsilon, delta), ALLOWANCE),
        // The paper uses estimated variances as if they were exact.
        Combine::Paper => (epsilon, 0.0),
    };
    (terms.mode == Mode::Default).then(|| Formula {
        numerator: Numerator::Estimated,
        denominator: Denominator::Estimated,
        epsilon,
        splits: splits(terms.target, terms.combine, epsilon, delta, quantiles),
        population: match terms.correction {
            Correction::Finite => Population::Finite,
            Correction::None => Population::Infinite,
        },
        allowance,
    })
}

/// The formula of `hoeffding`; `None` where the smallest budget has to be searched.
fn hoeffding_formula(hoeffding: &Hoeffding, epsilon: f64, delta: f64) -> Option<Formula> {
    let &Hoeffding { target, combine, correction, .. } = hoeffding;
    let population = match (target, correction) {
        (_, Correction::None) => Population::Infinite,
        (Target::Denominator, Correction::Finite) => Population::Serfling,
        (Target::Numerator | Target::Sdpa, Correction::Finite) => return None,
    };
    let proved = hoeffding.schedule() == Schedule::Before;
    let denominator = if proved { Denominator::Proved } else { Denominator::Bounded };
    let epsilon = match (target, combine) {
        (Target::Denominator, _) | (_, Combine::Paper) => epsilon,
        (Target::Numerator | Target::Sdpa, Combine::Exact) => radius_of_sure_bar(epsilon),
    };
    // The range of numbers is 1, and so is the largest norm of vectors.
    let quantiles = DrawQuantiles {
        scalar: &|delta| hoeffding_radius(delta, 1.0),
        vector: &|delta| mcdiarmid_radius(delta, 1.0, 2.0),
    };
    Some(Formula {
        numerator: Numerator::Bounded,
        denominator,
        epsilon,
        splits: splits(target, combine, epsilon, delta, &quantiles),
        population,
        allowance: 0.0,
    })
}

/// Bounds on the deviation of the mean, at one draw, that hold with probability `1 − delta`.
struct DrawQuantiles<'a> {
    /// For a number: multiple of its standard deviation, or of its range.
    scalar: &'a dyn Fn(f64) -> f64,
    /// For a vector: multiple of the root of its covariance's trace, or of the largest norm.
    vector: &'a dyn Fn(f64) -> f64,
}

/// Exponents, in units of `RATIO_STEP`, of the ratios in which delta is divided. A table replaces
/// the search of the estimators. Where the best ratio is outside the table, or between two entries,
/// `√b` is at most about 1e-5 larger.
const RATIO_EXPONENTS: std::ops::RangeInclusive<i32> = -384..=384;
const RATIO_STEP: f64 = 1.0 / 32.0;

/// Divisions of delta for which the target's error is within epsilon with probability `1 − delta`.
fn splits(
    target: Target,
    combine: Combine,
    epsilon: f64,
    delta: f64,
    quantiles: &DrawQuantiles<'_>,
) -> Vec<DeltaSplit> {
    // Weights of both errors: `√b ε` is linear in each.
    let (num, den) = match (target, combine) {
        (Target::Denominator, _) => (0.0, 1.0),
        (Target::Numerator, _) => (1.0, 0.0),
        (Target::Sdpa, Combine::Exact) => (1.0, 1.0 + epsilon),
        (Target::Sdpa, Combine::Paper) => (2.0, 2.0),
    };
    let split = |delta_num: f64, delta_den: f64| DeltaSplit {
        cap: if num > 0.0 { ((quantiles.vector)(delta_num) * num).powi(2) } else { 0.0 },
        // The spectrum is unknown, so the cap must apply.
        kappa: f64::INFINITY,
        z: if den > 0.0 { (quantiles.scalar)(delta_den) * den / epsilon } else { 0.0 },
    };
    let divide = |exponent: i32| {
        let ratio = (f64::from(exponent) * RATIO_STEP).exp();
        split(delta / (1.0 + ratio), delta / (1.0 + 1.0 / ratio))
    };
    match target {
        Target::Denominator | Target::Numerator => vec![split(delta, delta)],
        Target::Sdpa => RATIO_EXPONENTS.map(divide).collect(),
    }
}
