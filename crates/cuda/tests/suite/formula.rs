//! The device's formula for an estimator equals the estimator's own budget.

use proptest::prelude::*;
use vattention_core::{
    Estimator, Fraction, SampleStats, Size, Target, pipeline::required_size, plugin::Schedule,
    promise::Scope,
};
use vattention_cuda::formula::{ClosedForm, Denominator, Formula, Numerator, Population};
use vattention_estimators::formula::{DeltaSplit, fpc, serfling, whole_tokens};
use vattention_estimators::{Clt, Combine, Correction, Hoeffding, Mode, Ratio, SubGaussian, Terms};

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

/// Statistics in the fields that `ratio` reads.
fn stats(n_s: usize, query_heads: usize, d: f64, norm: f64, moments: [f64; 3]) -> SampleStats {
    let [var_e, trace_w, nu] = moments;
    SampleStats {
        drawn: 100,
        b: 100,
        n_s,
        visible: n_s + 7,
        query_heads,
        value_dim: 16,
        d,
        d_certain: d / 2.0,
        norm_n: norm,
        drift: 0.0,
        var_e,
        trace_ev: 2.0 * trace_w,
        trace_w,
        nu,
        kurtosis_e: 3.0,
        kurtosis_w: 1.1,
        max_norm_v: 1.0,
        bound: None,
        unseen: None,
    }
}

/// Evaluates the formula on the host.
fn evaluate(form: &ClosedForm, stats: &SampleStats) -> usize {
    match form {
        ClosedForm::Size(size) => size.to_tokens(stats.visible),
        ClosedForm::Formula { formula, .. } => {
            let Formula { numerator, denominator, epsilon, splits, population, allowance } =
                formula;
            let stats = &stats.with_raised_variances(*allowance);
            let n_s = stats.n_s as f64;
            let bound = stats.bound.unwrap_or(f64::NAN);
            let (spread, norm) = match numerator {
                Numerator::Output => (stats.trace_w.sqrt(), stats.norm_n),
                Numerator::Estimated => (stats.trace_ev.sqrt(), stats.norm_n),
                Numerator::Bounded => (bound * stats.max_norm_v, stats.norm_n),
            };
            let (deviation, d) = match denominator {
                Denominator::Estimated => (stats.var_e.sqrt(), stats.d),
                Denominator::Bounded => (bound, stats.d),
                Denominator::Proved => (bound, stats.d_certain),
            };
            let (s, s_d) = (n_s * spread / norm, n_s * deviation / d);
            let root = |split: &DeltaSplit| {
                let q = split.cap.min(1.0 + split.kappa / stats.nu.sqrt());
                q.sqrt() * s / epsilon + split.z * s_d
            };
            let least = splits.iter().map(root).fold(f64::INFINITY, f64::min);
            let infinite = least * least;
            let b = match population {
                Population::Infinite => infinite,
                Population::Finite => fpc(infinite, stats.n_s),
                Population::Serfling => serfling(infinite, n_s),
            };
            whole_tokens(b, stats.n_s)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn the_formula_is_the_budget(
        epsilon in prop::sample::select(&[0.02, 0.1, 0.5][..]),
        delta in prop::sample::select(&[0.001, 0.1, 0.4][..]),
        query_heads in 1_usize..9,
        of_step: bool,
        n_s in 1_usize..100_000,
        d in 0.1..100.0,
        norm in 0.1..100.0,
        moments in [1e-6..1.0, 1e-6..1.0, 1.0..60.0],
    ) {
        let scope = if of_step { Scope::Step } else { Scope::Row };
        let mut ratio = Ratio::new(fraction(epsilon), fraction(delta));
        ratio.scope = scope;
        let per_token = n_s as f64;
        let stats = stats(n_s, query_heads, d * per_token, norm * per_token, moments);
        let form = ClosedForm::from_estimator(&ratio, query_heads, stats.value_dim).unwrap();
        let budget = required_size(&ratio, &stats);
        prop_assert_eq!(evaluate(&form, &stats), budget.tokens);
        let ClosedForm::Formula { kind, assumes, .. } = form else { panic!("{form:?}") };
        prop_assert_eq!((kind, assumes), (budget.kind, budget.assumes));
    }

    /// The formula has a table of the ways to divide delta instead of a search.
    #[test]
    fn the_formula_of_terms_is_within_a_ten_thousandth_of_the_budget(
        epsilon in prop::sample::select(&[0.02, 0.1, 0.5][..]),
        delta in prop::sample::select(&[0.001, 0.1, 0.2][..]),
        target in prop::sample::select(&[Target::Sdpa, Target::Denominator, Target::Numerator][..]),
        combine in prop::sample::select(&[Combine::Exact, Combine::Paper][..]),
        correction in prop::sample::select(&[Correction::Finite, Correction::None][..]),
        of_step: bool,
        n_s in 1_usize..1_000_000,
        d in 0.1..100.0,
        norm in 0.1..100.0,
        moments in [1e-9..1.0, 1e-9..1.0, 1.0..60.0],
    ) {
        let scope = if of_step { Scope::Step } else { Scope::Row };
        let terms = Terms::new(target, fraction(epsilon), fraction(delta));
        let terms = Terms { combine, correction, scope, ..terms };
        let stats = stats(n_s, 4, d * n_s as f64, norm * n_s as f64, moments);
        for estimator in [&Clt(terms.clone()) as &dyn Estimator, &SubGaussian(terms)] {
            let form = ClosedForm::from_estimator(estimator, 4, stats.value_dim).unwrap();
            let found = evaluate(&form, &stats);
            let budget = required_size(estimator, &stats).tokens;
            let allowed = (1e-4 * budget as f64).max(1.0);
            prop_assert!(found.abs_diff(budget) as f64 <= allowed, "{found} for {budget}");
        }
    }

    /// Ranges replace deviations, with every constant; the form also reports the guarantee.
    #[test]
    fn the_formula_of_hoeffding_is_within_a_ten_thousandth_of_the_budget(
        epsilon in prop::sample::select(&[0.02, 0.1, 0.5][..]),
        delta in prop::sample::select(&[0.001, 0.1, 0.4][..]),
        target in prop::sample::select(&[Target::Sdpa, Target::Denominator, Target::Numerator][..]),
        combine in prop::sample::select(&[Combine::Exact, Combine::Paper][..]),
        correction in prop::sample::select(&[Correction::Finite, Correction::None][..]),
        of_step: bool,
        n_s in 1_usize..1_000_000,
        d in 0.1..100.0,
        norm in 0.1..100.0,
        longest in 1e-3..1e3,
        bound in -9.0..1.0,
    ) {
        let scope = if of_step { Scope::Step } else { Scope::Row };
        let hoeffding = Hoeffding::new(target, fraction(epsilon), fraction(delta));
        let hoeffding = Hoeffding { combine, correction, scope, ..hoeffding };
        let plain = stats(n_s, 4, d * n_s as f64, norm * n_s as f64, [1.0; 3]);
        // Budgets reach from one token to all of them.
        let bound = 10.0_f64.powf(bound) * n_s as f64;
        let stats = SampleStats { bound: Some(bound), max_norm_v: longest, ..plain };
        let Some(form) = ClosedForm::from_estimator(&hoeffding, 4, stats.value_dim) else {
            let searched = target != Target::Denominator && correction == Correction::Finite;
            prop_assert!(searched, "the others have a formula");
            return Ok(());
        };
        let (found, budget) = (evaluate(&form, &stats), required_size(&hoeffding, &stats));
        let allowed = (1e-4 * budget.tokens as f64).max(1.0);
        prop_assert!(found.abs_diff(budget.tokens) as f64 <= allowed, "{found} for {budget:?}");
        let ClosedForm::Formula { kind, assumes, formula } = form else { panic!("{form:?}") };
        prop_assert_eq!((kind, assumes), (budget.kind, budget.assumes));
        prop_assert!(formula.needs_bound());
        prop_assert_eq!(formula.needs_sample(), hoeffding.schedule() != Schedule::Before);
    }
}

#[test]
fn a_fixed_size_has_a_closed_form() {
    let stats = stats(1000, 4, 1.0, 1.0, [1.0; 3]);
    for (size, want) in [(Size::Tokens(40), 40), (Size::Share(fraction(0.1)), 100)] {
        let mut strict = Ratio::sized(size, fraction(0.1));
        strict.mode = Mode::Strict;
        let form = ClosedForm::from_estimator(&strict, 4, 16).unwrap();
        assert_eq!(evaluate(&form, &stats), want);
    }
}

/// Estimators that use more statistics than the formula has.
#[test]
fn other_estimators_have_no_formula() {
    let [epsilon, delta] = [0.1, 0.2].map(fraction);
    let target = Target::Sdpa;
    let ratio = |change: &dyn Fn(&mut Ratio)| {
        let mut ratio = Ratio::new(epsilon, delta);
        change(&mut ratio);
        Box::new(ratio)
    };
    let hoeffding = |target| Hoeffding::new(target, epsilon, delta);
    let others: [Box<dyn Estimator>; 6] = [
        ratio(&|ratio| ratio.mode = Mode::Strict),
        ratio(&|ratio| ratio.mode = Mode::Rigorous),
        ratio(&|ratio| ratio.limit = Some(Size::Tokens(100))),
        Box::new(Clt(Terms { mode: Mode::Strict, ..Terms::new(target, epsilon, delta) })),
        Box::new(hoeffding(Target::Sdpa)),
        Box::new(hoeffding(Target::Numerator)),
    ];
    for estimator in others {
        assert_eq!(ClosedForm::from_estimator(&*estimator, 4, 16), None, "{estimator:?}");
    }
}
