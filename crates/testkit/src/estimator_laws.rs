//! The laws of estimators. A verdict describes the violation.

use proptest::prelude::*;
use vattention_core::{
    Estimator, Fraction, SampleStats,
    pipeline::required_size,
    plugin::{SampleEvidence, TunableGoal},
    sample::MissBounds,
};

use crate::laws::read_again;
use crate::verdict::{Verdict, ensure};

/// A law, which an estimator obeys or violates for the statistics of a sample.
pub type EstimatorLaw = fn(&dyn Estimator, &SampleStats) -> Verdict;

/// Largest relative rounding error of a radius.
const ROUNDING: f64 = 1e-6;

/// A config stays the same if it is written and read again.
///
/// # Errors
/// The text before and after.
pub fn round_trips(estimator: &dyn Estimator, _: &SampleStats) -> Verdict {
    let (text, again) = read_again::<Box<dyn Estimator>>(estimator)?;
    let text_again = serde_json::to_string(&*again).map_err(|e| e.to_string())?;
    ensure(text == text_again, || format!("{text} became {text_again}"))
}

/// A radius is neither negative nor NaN, and falls as a sample with the same moments grows.
///
/// # Errors
/// The radii.
pub fn falls(estimator: &dyn Estimator, stats: &SampleStats) -> Verdict {
    let mut last = f64::INFINITY;
    for parts in 0..=4 {
        let b = stats.b + (stats.n_s - stats.b) * parts / 4;
        let radius = estimator.radius(&stats.with_size(b)).relative;
        ensure(radius >= 0.0 && radius <= last * (1.0 + ROUNDING), || {
            format!("the radius is {radius} at {b} tokens, and {last} at fewer")
        })?;
        last = radius;
    }
    Ok(())
}

/// The budget for a promise is the least sample size whose radius is at most epsilon. The law does
/// not apply to estimators that need a [proof](SampleEvidence::Proof), which check fixed sizes
/// only.
///
/// # Errors
/// The radius at the budget, or at one token less.
pub fn agrees(estimator: &dyn Estimator, stats: &SampleStats) -> Verdict {
    let epsilon = estimator.goal()?.epsilon();
    let Some(epsilon) = epsilon.filter(|_| estimator.evidence() != SampleEvidence::Proof) else {
        return Ok(());
    };
    let (epsilon, b) = (epsilon.get(), required_size(estimator, stats).tokens);
    let radius = |b: usize| estimator.radius(&stats.with_size(b)).relative;
    ensure(b >= stats.n_s || radius(b) <= (1.0 + ROUNDING) * epsilon, || {
        format!("the budget is {b} tokens, and its radius {}, not {epsilon}", radius(b))
    })?;
    ensure(b < 2 || radius(b - 1) >= (1.0 - ROUNDING) * epsilon, || {
        format!("the budget is {b} tokens, but the radius at one less is {}", radius(b - 1))
    })
}

/// The radius stays the same if all weights are four times as large.
///
/// # Errors
/// The radii.
pub fn scales(estimator: &dyn Estimator, stats: &SampleStats) -> Verdict {
    let [radius, scaled] =
        [stats, &times_four(stats)].map(|stats| estimator.radius(stats).relative);
    ensure(radius == scaled || (scaled / radius - 1.0).abs() <= ROUNDING, || {
        format!("the radius is {radius}, and {scaled} where all weights are four times as large")
    })
}

/// The estimator demands the values that were set by [`tunable`](Estimator::tunable).
///
/// # Errors
/// The goal that the estimator demands instead.
pub fn is_set(estimator: &dyn Estimator, _: &SampleStats) -> Verdict {
    let (_, mut other) = read_again::<Box<dyn Estimator>>(estimator)?;
    let (share, delta) = (fraction(0.037), fraction(0.041));
    let Some(TunableGoal { epsilon, size, delta: old_delta }) = other.tunable() else {
        return Ok(());
    };
    let epsilon = epsilon.map(|old| {
        *old = share;
        share
    });
    let size = size.map(|old| {
        *old = old.with_share(share);
        *old
    });
    *old_delta = delta;
    let goal = other.goal()?;
    ensure((goal.epsilon(), goal.size(), goal.delta) == (epsilon, size, delta), || {
        format!(
            "epsilon or size were set to {share:?}, delta to {delta:?}, but the estimator \
             demands {goal:?}"
        )
    })
}

/// A larger epsilon needs no more tokens, over a grid of steps of 1/32 and near both ends; a larger
/// delta makes no wider error bar. Searches over epsilon or delta rely on this law.
///
/// # Errors
/// The budgets, or the radii.
pub fn is_monotone(estimator: &dyn Estimator, stats: &SampleStats) -> Verdict {
    let mut fewest = usize::MAX;
    let grid = (1..32).map(|step| f64::from(step) / 32.0);
    for epsilon in [0.001, 0.003, 0.01].into_iter().chain(grid).chain([0.99, 0.999]) {
        let Some(other) = with(estimator, Some(epsilon), None) else { break };
        let tokens = required_size(&*other, stats).tokens;
        ensure(tokens <= fewest, || {
            format!(
                "the budget is {tokens} tokens at epsilon {epsilon}, and {fewest} at a smaller one"
            )
        })?;
        fewest = tokens;
    }
    let mut narrowest = f64::INFINITY;
    for delta in [0.001, 0.02, 0.1, 0.3] {
        let Some(other) = with(estimator, None, Some(delta)) else { break };
        let radius = other.radius(stats).relative;
        ensure(radius <= narrowest * (1.0 + ROUNDING), || {
            format!("the radius is {radius} at delta {delta}, and {narrowest} at a smaller one")
        })?;
        narrowest = radius;
    }
    Ok(())
}

/// A statistic that is NaN is unknown: it makes no error bar narrower and no budget smaller.
///
/// # Errors
/// The statistics, and the bar or the budget.
pub fn distrusts(estimator: &dyn Estimator, stats: &SampleStats) -> Verdict {
    let nan = f64::NAN;
    let unseen = |numerator, denominator| Some(MissBounds { numerator, denominator, proved: true });
    let known = SampleStats { unseen: unseen(0.0, 0.0), ..*stats };
    let pairs = [
        (*stats, SampleStats { d: nan, ..*stats }),
        (*stats, SampleStats { d_certain: nan, ..*stats }),
        (*stats, SampleStats { norm_n: nan, ..*stats }),
        (*stats, SampleStats { drift: nan, ..*stats }),
        (*stats, SampleStats { var_e: nan, ..*stats }),
        (*stats, SampleStats { trace_ev: nan, ..*stats }),
        (*stats, SampleStats { trace_w: nan, ..*stats }),
        (*stats, SampleStats { nu: nan, ..*stats }),
        (*stats, SampleStats { kurtosis_e: nan, ..*stats }),
        (*stats, SampleStats { kurtosis_w: nan, ..*stats }),
        (*stats, SampleStats { max_norm_v: nan, ..*stats }),
        (*stats, SampleStats { bound: stats.bound.map(|_| nan), ..*stats }),
        (known, SampleStats { unseen: unseen(nan, nan), ..*stats }),
    ];
    for (known, doubtful) in pairs {
        let [before, after] = [known, doubtful].map(|stats| estimator.radius(&stats).relative);
        ensure(after >= before * (1.0 - ROUNDING), || {
            format!("the radius is {before}, but {after} for {doubtful:?}")
        })?;
        if estimator.goal()?.epsilon().is_some() {
            let [before, after] =
                [known, doubtful].map(|stats| required_size(estimator, &stats).tokens);
            ensure(after >= before, || {
                format!("the budget is {before} tokens, but {after} for {doubtful:?}")
            })?;
        }
    }
    Ok(())
}

/// Returns the estimator with another epsilon or delta, if they can be set. Clones share tables.
fn with(
    estimator: &dyn Estimator,
    epsilon: Option<f64>,
    delta: Option<f64>,
) -> Option<Box<dyn Estimator>> {
    let mut other = dyn_clone::clone_box(estimator);
    let TunableGoal { epsilon: old_epsilon, delta: old_delta, .. } = other.tunable()?;
    if let Some(epsilon) = epsilon {
        *old_epsilon? = fraction(epsilon);
    }
    if let Some(delta) = delta {
        *old_delta = fraction(delta);
    }
    Some(other)
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).expect("a number between 0 and 1")
}

fn times_four(stats: &SampleStats) -> SampleStats {
    SampleStats {
        d: 4.0 * stats.d,
        d_certain: 4.0 * stats.d_certain,
        norm_n: 4.0 * stats.norm_n,
        var_e: 16.0 * stats.var_e,
        trace_ev: 16.0 * stats.trace_ev,
        trace_w: 16.0 * stats.trace_w,
        bound: stats.bound.map(|bound| 4.0 * bound),
        ..*stats
    }
}

/// Strategy of statistics of samples: 2 to 2,000 tokens with weights below 1, from a residual of up
/// to 22,000 tokens.
pub fn stats() -> impl Strategy<Value = SampleStats> {
    let sizes = (2usize..2000, 0usize..20_000);
    let e = (0.001..0.5, 0.001..0.25);
    let values = (0.01..1.0, 0.0..2.0, 1.0..3.0);
    let certain = (0.0..1e4, prop::bool::ANY);
    (sizes, e, values, certain, 1.0..20.0).prop_map(
        |(
            (b, more),
            (mean, var_e),
            (output, drift, max_norm_v),
            (d_certain, bounded),
            kurtosis,
        )| {
            let n_s = b + more;
            let d = d_certain + n_s as f64 * mean;
            SampleStats {
                drawn: b,
                b,
                n_s,
                visible: n_s + 10,
                query_heads: 4,
                value_dim: 8,
                d,
                d_certain,
                norm_n: output * d,
                drift,
                var_e,
                trace_ev: 0.8 * var_e,
                trace_w: 0.5 * var_e,
                nu: 2.0,
                kurtosis_e: kurtosis,
                kurtosis_w: 1.5 * kurtosis,
                max_norm_v,
                bound: bounded.then_some(1.0),
                unseen: None,
            }
        },
    )
}
