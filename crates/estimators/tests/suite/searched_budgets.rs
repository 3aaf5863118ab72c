//! The search over sizes returns the budgets of the paper's formulas to the token.

use std::cell::Cell;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use vattention_core::{
    Estimator, Fraction, Goal, SampleStats, Target,
    pipeline::required_size,
    plugin::{Radius, SampleEvidence, Schedule},
    typetag,
};
use vattention_estimators::formula::{
    RatioGrid, bar_of_radius, c2, fpc, hoeffding, mcdiarmid_radius, sdpa, serfling, sub_gaussian,
    sure_bar_of_radius, whole_tokens, z_two,
};
use vattention_estimators::{Clt, Combine, Correction, Hoeffding, Ratio, SubGaussian, Terms};
use vattention_testkit::estimator_laws::stats;

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

thread_local! {
    static RADII: Cell<usize> = const { Cell::new(0) };
}

/// An estimator that counts the radii that a search computes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CountingEstimator(Box<dyn Estimator>);

#[typetag::serde(name = "counting")]
impl Estimator for CountingEstimator {
    fn goal(&self) -> Result<Goal, &'static str> {
        self.0.goal()
    }

    fn evidence(&self) -> SampleEvidence {
        self.0.evidence()
    }

    fn schedule(&self) -> Schedule {
        self.0.schedule()
    }

    fn radius(&self, stats: &SampleStats) -> Radius {
        RADII.set(RADII.get() + 1);
        self.0.radius(stats)
    }
}

/// Searches the required size, which must not take more than 24 radii.
fn search(estimator: impl Estimator + 'static, stats: &SampleStats) -> usize {
    RADII.set(0);
    let tokens = required_size(&CountingEstimator(Box::new(estimator)), stats).tokens;
    assert!(RADII.get() <= 24, "{} radii for {tokens} tokens, {stats:?}", RADII.get());
    tokens
}

const TARGETS: [Target; 3] = [Target::Sdpa, Target::Denominator, Target::Numerator];

/// Statistics that estimators do not raise by an allowance, since the formulas have none.
fn stats_without_allowance() -> impl Strategy<Value = SampleStats> {
    stats().prop_map(|stats| SampleStats { kurtosis_e: 1.0, kurtosis_w: 1.0, ..stats })
}

/// `s_D` and `s_N`.
fn deviations(stats: &SampleStats) -> (f64, f64) {
    let n_s = stats.n_s as f64;
    (n_s * stats.var_e.sqrt() / stats.d, n_s * stats.trace_ev.sqrt() / stats.norm_n)
}

/// Budget from the radii of numerator and denominator at one draw.
fn budget(
    target: Target,
    combine: Combine,
    (epsilon, delta): (f64, f64),
    num: impl Fn(f64) -> f64,
    den: impl Fn(f64) -> f64,
) -> f64 {
    match target {
        Target::Denominator => (den(delta) / epsilon).powi(2),
        Target::Numerator => (num(delta) / epsilon).powi(2),
        Target::Sdpa => sdpa(combine, epsilon, delta, num, den).b,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 32,
        ..ProptestConfig::default()
    })]

    /// Formulas take `epsilon` as the error relative to the estimate.
    #[test]
    fn budgets_from_estimated_variances(
        stats in stats_without_allowance(),
        epsilon in 0.01..0.9,
        delta in 0.001..0.2,
    ) {
        let (s_d, s_n) = deviations(&stats);
        for target in TARGETS {
            for combine in [Combine::Exact, Combine::Paper] {
                let is_exact = combine == Combine::Exact;
                let promised = if is_exact { bar_of_radius(epsilon, delta) } else { epsilon };
                prop_assume!(promised < 1.0);
                let vector = |delta: f64| {
                    if is_exact { c2(delta, stats.value_dim).sqrt() } else { z_two(delta) }
                };
                let promise = (epsilon, delta);
                let num = |delta: f64| vector(delta) * s_n;
                let den = |delta: f64| z_two(delta) * s_d;
                let clt = budget(target, combine, promise, num, den);
                let num = |delta: f64| sub_gaussian(delta) * s_n;
                let den = |delta: f64| sub_gaussian(delta) * s_d;
                let proxy = budget(target, combine, promise, num, den);
                for correction in [Correction::Finite, Correction::None] {
                    let terms = Terms::new(target, fraction(promised), fraction(delta));
                    let terms = Terms { combine, correction, ..terms };
                    let tokens = |b: f64| {
                        let is_finite = correction == Correction::Finite;
                        let b = if is_finite { fpc(b, stats.n_s) } else { b };
                        whole_tokens(b, stats.n_s)
                    };
                    let case = format!("{terms:?}");
                    let found = search(Clt(terms.clone()), &stats);
                    prop_assert_eq!(found, tokens(clt), "clt, {}", case);
                    let found = search(SubGaussian(terms), &stats);
                    prop_assert_eq!(found, tokens(proxy), "sub-gaussian, {}", case);
                }
            }
        }
    }

    #[test]
    fn budgets_of_the_ratio_estimator(
        stats in stats_without_allowance(),
        epsilon in 0.01..0.9,
        delta in 0.001..0.4,
    ) {
        let promised = bar_of_radius(epsilon, delta);
        prop_assume!(promised < 1.0);
        let (s_d, _) = deviations(&stats);
        let s_w = stats.n_s as f64 * stats.trace_w.sqrt() / stats.norm_n;
        let want = RatioGrid::new(delta, stats.value_dim).budget(epsilon, s_w, s_d, stats.nu);
        let found = search(Ratio::new(fraction(promised), fraction(delta)), &stats);
        prop_assert_eq!(found, whole_tokens(fpc(want, stats.n_s), stats.n_s));
    }

    /// The finite-population correction is tested for the denominator only.
    #[test]
    fn budgets_from_a_range(
        stats in stats_without_allowance(),
        epsilon in 0.01..0.4,
        delta in 0.001..0.4,
        power in -6.0..0.0,
    ) {
        let bound = 10.0_f64.powf(power);
        let stats = SampleStats { bound: Some(bound), d_certain: 0.5 * stats.d, ..stats };
        let n_s = stats.n_s as f64;
        for target in TARGETS {
            for combine in [Combine::Exact, Combine::Paper] {
                let proved = target == Target::Denominator && combine == Combine::Exact;
                let sure = target != Target::Denominator && combine == Combine::Exact;
                let promised = if sure { sure_bar_of_radius(epsilon) } else { epsilon };
                let d = if proved { stats.d_certain } else { stats.d };
                let largest = bound * stats.max_norm_v;
                let num = |delta: f64| {
                    n_s * mcdiarmid_radius(delta, largest.powi(2), 2.0 * largest) / stats.norm_n
                };
                let den = |delta: f64| hoeffding(delta, n_s, bound, d).sqrt();
                let infinite = budget(target, combine, (epsilon, delta), num, den);
                let estimator = |correction| Hoeffding {
                    combine,
                    correction,
                    ..Hoeffding::new(target, fraction(promised), fraction(delta))
                };
                let found = search(estimator(Correction::None), &stats);
                prop_assert_eq!(found, whole_tokens(infinite, stats.n_s), "{}", target);
                if target == Target::Denominator {
                    let finite = whole_tokens(serfling(infinite, n_s), stats.n_s);
                    let found = search(estimator(Correction::Finite), &stats);
                    prop_assert_eq!(found, finite, "{}", target);
                }
            }
        }
    }
}
