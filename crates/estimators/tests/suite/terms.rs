//! Effects of the terms of estimators on budgets, schedules and kinds of promises.

use serde_json::json;
use vattention_core::{
    Estimator, Fraction, Kind, SampleStats, Target, pipeline::required_size, plugin::Schedule,
};
use vattention_estimators::formula::{RatioGrid, bar_of_radius, c2, sdpa_exact};
use vattention_estimators::{Clt, Combine, Hoeffding, Ratio, Terms};

const TARGETS: [Target; 3] = [Target::Sdpa, Target::Denominator, Target::Numerator];

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

fn terms(target: Target, combine: Combine) -> Terms {
    Terms { combine, ..Terms::new(target, fraction(0.1), fraction(0.1)) }
}

fn hoeffding(target: Target, combine: Combine) -> Hoeffding {
    Hoeffding { combine, ..Hoeffding::new(target, fraction(0.1), fraction(0.1)) }
}

/// A residual of which some tokens must be sampled.
fn stats() -> SampleStats {
    SampleStats {
        drawn: 100,
        b: 100,
        n_s: 10_000,
        visible: 10_000,
        query_heads: 1,
        value_dim: 16,
        d: 10_000.0,
        d_certain: 5_000.0,
        norm_n: 10_000.0,
        drift: 0.0,
        var_e: 0.25,
        trace_ev: 0.25,
        trace_w: 0.25,
        nu: 4.0,
        kurtosis_e: 1.0,
        kurtosis_w: 1.0,
        max_norm_v: 1.0,
        bound: Some(0.125),
        unseen: None,
    }
}

#[test]
fn errors_are_converted_except_with_the_constants_of_the_paper() {
    let delta = 0.1;
    for target in [Target::Numerator, Target::Denominator] {
        let radius = |combine| {
            let clt = Clt(Terms { ..terms(target, combine) });
            clt.radius(&SampleStats { drawn: 200, b: 200, ..stats() }).relative
        };
        let (exact, paper) = (radius(Combine::Exact), radius(Combine::Paper));
        assert!(exact > 1.001 * paper && (exact / bar_of_radius(paper, delta) - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_negative_quantile_of_the_denominator_counts_as_zero() {
    assert_eq!(RatioGrid::new(0.95, 1).budget(0.1, 0.0, 1.0, 1.0), 0.0);
}

#[test]
fn a_table_is_recomputed_for_another_value_dimension() {
    assert!(!RatioGrid::new(0.3, 1).fits(0.3, 128));
    assert!(RatioGrid::new(0.2, 1).fits(0.2, 128), "one dimension is the worst case");
    let ratio = || Ratio::new(fraction(0.1), fraction(0.45));
    let used = ratio();
    let (one, many) = (SampleStats { value_dim: 1, ..stats() }, stats());
    assert_ne!(used.radius(&one), used.radius(&many));
    assert_eq!(used.radius(&many), ratio().radius(&many));
}

#[test]
fn the_exact_split_bounds_vectors_by_the_constant_for_vectors() {
    let only_numerator = sdpa_exact(0.1, 0.45, 0.0, 1.0, 128).b;
    assert!((only_numerator / (100.0 * c2(0.45, 128)) - 1.0).abs() < 1e-6, "{only_numerator}");
}

#[test]
fn the_number_of_checks_is_six_by_default() {
    for name in ["ratio", "clt", "sub-gaussian", "hoeffding"] {
        let mut terms = json!({ "type": name, "target": "sdpa", "epsilon": 0.1, "delta": 0.1 });
        let schedule =
            |terms| serde_json::from_value::<Box<dyn Estimator>>(terms).unwrap().schedule();
        assert_eq!(schedule(terms.clone()), Schedule::Adaptive { rounds: 6 }, "{name}");
        terms["rounds"] = 3.into();
        assert_eq!(schedule(terms), Schedule::Adaptive { rounds: 3 }, "{name}");
    }
}

#[test]
fn only_the_exact_denominator_is_proved_and_needs_no_check() {
    for combine in [Combine::Exact, Combine::Paper] {
        for target in TARGETS {
            let hoeffding = hoeffding(target, combine);
            let proved = target == Target::Denominator && combine == Combine::Exact;
            let want = if proved {
                (Kind::FiniteSample, Schedule::Before)
            } else {
                (Kind::Asymptotic, Schedule::Adaptive { rounds: 6 })
            };
            let case = format!("{target}, {combine:?}");
            assert_eq!((hoeffding.radius(&stats()).kind, hoeffding.schedule()), want, "{case}");
        }
    }
}

#[test]
fn a_proof_uses_nothing_that_was_estimated() {
    let proved = hoeffding(Target::Denominator, Combine::Exact);
    let unknown =
        SampleStats { drawn: 0, b: 0, d: f64::NAN, norm_n: f64::NAN, var_e: f64::NAN, ..stats() };
    let tokens = required_size(&proved, &unknown).tokens;
    assert_eq!(tokens, required_size(&proved, &stats()).tokens);
    assert!((1..10_000).contains(&tokens), "{tokens}");
}

#[test]
fn without_a_bound_everything_is_read() {
    for target in TARGETS {
        let hoeffding = hoeffding(target, Combine::Exact);
        let tokens = required_size(&hoeffding, &SampleStats { bound: None, ..stats() }).tokens;
        assert_eq!(tokens, 10_000, "{target}");
    }
}
