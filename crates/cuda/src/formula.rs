//! Budgets as formulas of a few statistics, which the device evaluates in place of an estimator.

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
    /// A fixed number of tokens, drawn at once. Nothing is promised.
    Size(Size),
    /// A formula of the sample's statistics.
    Formula {
        /// The formula.
        formula: Formula,
        /// The ground of the promise.
        kind: Kind,
        /// Its assumptions.
        assumes: Assumptions,
    },
}

/// `√b = min over splits of [√q s / ε + z s_D]`, with `s` of the numerator and `s_D` of the
/// denominator, the deviation of each at one draw; then less, as the residual is finite, and rounded
/// up.
///
/// Both follow from deviations that the sample shows, or from `B`, the largest `e` that an untaken
/// token can have, which selectors prove.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    /// The definition of `s`.
    pub numerator: Numerator,
    /// The definition of `s_D`.
    pub denominator: Denominator,
    /// The error allowed, relative to the estimate.
    pub epsilon: f64,
    /// Ways to divide the failure probability; the cheapest counts.
    pub splits: Vec<DeltaSplit>,
    /// The correction for a finite residual.
    pub population: Population,
    /// By how many of their own standard errors variances are raised,
    /// [`SampleStats::raised`](vattention_core::SampleStats::raised); 0 for none.
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
    /// `n_s σ / D`, as estimated.
    Estimated,
    /// `n_s B / D`; the denominator is as estimated.
    Bounded,
    /// `n_s B / D_f`, which is known before anything is drawn: `D_f` is the certain tokens' part of
    /// `D`.
    Proved,
}

/// The budget out of `n_s` tokens, from the budget `b0` for an infinite population.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Population {
    /// `b0`.
    Infinite,
    /// `b0 / (1 + b0 / n_s)`, which is right for variances.
    Finite,
    /// The least `b` that is at least `b0 (1 − (b − 1) / n_s)`, or, beyond `n_s / 2`,
    /// `b0 (1 − b / n_s) (1 + 1 / b)`: Serfling's, which is right for ranges.
    Serfling,
}

impl Formula {
    /// Whether it follows from what selectors prove of the tokens that they leave.
    pub fn needs_bound(&self) -> bool {
        self.numerator == Numerator::Bounded || self.denominator != Denominator::Estimated
    }

    /// Whether it follows from a sample; if not, from the certain tokens alone.
    pub fn needs_sample(&self) -> bool {
        let numerator_counts = self.splits.iter().any(|split| split.cap > 0.0);
        numerator_counts || self.denominator != Denominator::Proved
    }
}

impl ClosedForm {
    /// The budget of an estimator for a layer of `query_heads` whose values have `value_dim` elements,
    /// if there are kernels for it. It may take tens of milliseconds.
    pub fn of_estimator(
        estimator: &dyn Estimator,
        query_heads: usize,
        value_dim: usize,
    ) -> Option<Self> {
        let goal = estimator.goal().ok()?;
        let epsilon = match goal.sample {
            SampleGoal::Size { size } => return Some(Self::Size(size)),
            SampleGoal::Promise { limit: Some(_), .. } => return None,
            SampleGoal::Promise { epsilon, limit: None } => epsilon.get(),
        };
        let delta = goal.row_delta(query_heads);
        let estimator: &dyn Any = estimator;
        let (formula, kind, assumes) = if let Some(ratio) = estimator.downcast_ref::<Ratio>() {
            (of_ratio(ratio, epsilon, delta, value_dim)?, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(Clt(terms)) = estimator.downcast_ref() {
            let vector: &dyn Fn(f64) -> f64 = match terms.combine {
                Combine::Exact => &|delta| c2(delta, value_dim).sqrt(),
                Combine::Paper => &z_two,
            };
            let quantiles = Quantiles { scalar: &z_two, vector };
            (of_terms(terms, epsilon, delta, &quantiles)?, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(SubGaussian(terms)) = estimator.downcast_ref() {
            let quantiles = Quantiles { scalar: &sub_gaussian, vector: &sub_gaussian };
            (of_terms(terms, epsilon, delta, &quantiles)?, Kind::Asymptotic, Assumptions::ALL)
        } else if let Some(hoeffding) = estimator.downcast_ref::<Hoeffding>() {
            let formula = of_hoeffding(hoeffding, epsilon, delta)?;
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

fn of_ratio(ratio: &Ratio, epsilon: f64, delta: f64, value_dim: usize) -> Option<Formula> {
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
fn of_terms(terms: &Terms, epsilon: f64, delta: f64, quantiles: &Quantiles<'_>) -> Option<Formula> {
    let (epsilon, allowance) = match terms.combine {
        Combine::Exact => (radius_of_bar(epsilon, delta), ALLOWANCE),
        // The paper takes estimates for the truth.
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

/// The formula of `hoeffding`; `None` where the fewest draws have to be searched.
fn of_hoeffding(hoeffding: &Hoeffding, epsilon: f64, delta: f64) -> Option<Formula> {
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
    // Of numbers up to 1, and of vectors of norms up to 1.
    let quantiles = Quantiles {
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

/// The bounds that hold with probability `1 − delta`, at one draw.
struct Quantiles<'a> {
    /// Of a number, in standard deviations, or relative to its range.
    scalar: &'a dyn Fn(f64) -> f64,
    /// Of a vector, in roots of its covariance's trace, or relative to the largest norm.
    vector: &'a dyn Fn(f64) -> f64,
}

/// The logarithms of the ratios in which a table divides delta, in place of a search. Where the best
/// ratio is beyond them, or between two, `√b` is some 1e-5 larger at the most.
const RATIOS: std::ops::RangeInclusive<i32> = -384..=384;
const STEP: f64 = 1.0 / 32.0;

/// The ways to bring a target's error within epsilon but for probability delta.
fn splits(
    target: Target,
    combine: Combine,
    epsilon: f64,
    delta: f64,
    quantiles: &Quantiles<'_>,
) -> Vec<DeltaSplit> {
    // The cost of one unit of each: `√b ε` is linear in both.
    let (num, den) = match (target, combine) {
        (Target::Denominator, _) => (0.0, 1.0),
        (Target::Numerator, _) => (1.0, 0.0),
        (Target::Sdpa, Combine::Exact) => (1.0, 1.0 + epsilon),
        (Target::Sdpa, Combine::Paper) => (2.0, 2.0),
    };
    let split = |delta_num: f64, delta_den: f64| DeltaSplit {
        cap: if num > 0.0 { ((quantiles.vector)(delta_num) * num).powi(2) } else { 0.0 },
        // Nothing is known of the spectrum: the cap is what counts.
        kappa: f64::INFINITY,
        z: if den > 0.0 { (quantiles.scalar)(delta_den) * den / epsilon } else { 0.0 },
    };
    let at = |ratio: f64| split(delta / (1.0 + ratio), delta / (1.0 + 1.0 / ratio));
    match target {
        Target::Denominator | Target::Numerator => vec![split(delta, delta)],
        Target::Sdpa => RATIOS.map(|i| at((f64::from(i) * STEP).exp())).collect(),
    }
}
