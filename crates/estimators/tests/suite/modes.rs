//! Effects of modes and scopes on budgets, radii and certificates.

use proptest::prelude::*;
use vattention_core::{
    Estimator, Fraction, Kind, SampleStats, Target,
    pipeline::required_size,
    plugin::{Budget, SampleEvidence, check_sizes},
    promise::{Assumption, Assumptions, Scope},
    sample::MissBounds,
};
use vattention_estimators::formula::{bar_of_radius, radius_of_bar};
use vattention_estimators::{Clt, Combine, Hoeffding, Mode, Ratio, SubGaussian, Terms};
use vattention_testkit::estimator_laws::{self, stats};

const MODES: [Mode; 3] = [Mode::Default, Mode::Strict, Mode::Rigorous];

/// Settings that all estimators have in common.
#[derive(Clone, Copy, Debug)]
struct Settings {
    target: Target,
    epsilon: f64,
    delta: f64,
    mode: Mode,
    scope: Scope,
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

impl Settings {
    fn new(target: Target, mode: Mode) -> Self {
        Self { target, epsilon: 0.1, delta: 0.1, mode, scope: Scope::Row }
    }

    fn terms(&self) -> Terms {
        Terms {
            mode: self.mode,
            scope: self.scope,
            ..Terms::new(self.target, fraction(self.epsilon), fraction(self.delta))
        }
    }

    /// All estimators that support these settings.
    fn estimators(&self) -> Vec<Box<dyn Estimator>> {
        let mut all: Vec<Box<dyn Estimator>> =
            vec![Box::new(Clt(self.terms())), Box::new(SubGaussian(self.terms()))];
        let Terms { target, delta, scope, .. } = self.terms();
        let epsilon = fraction(self.epsilon);
        if self.target == Target::Sdpa {
            let mut ratio = Ratio::new(epsilon, delta);
            (ratio.mode, ratio.scope) = (self.mode, scope);
            all.push(Box::new(ratio));
        }
        if self.mode == Mode::Default {
            all.push(Box::new(Hoeffding { scope, ..Hoeffding::new(target, epsilon, delta) }));
        }
        all
    }

    fn budgets(&self, stats: &SampleStats) -> Vec<Budget> {
        self.estimators().iter().map(|estimator| required_size(&**estimator, stats)).collect()
    }

    fn tokens(&self, stats: &SampleStats) -> Vec<usize> {
        self.budgets(stats).iter().map(|budget| budget.tokens).collect()
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    let targets = prop::sample::select(vec![Target::Sdpa, Target::Denominator, Target::Numerator]);
    let modes = prop::sample::select(MODES.to_vec());
    (targets, modes, 0.01..0.5, 0.01..0.5).prop_map(|(target, mode, epsilon, delta)| Settings {
        target,
        epsilon,
        delta,
        mode,
        scope: Scope::Row,
    })
}

fn all_at_most(fewer: &[usize], more: &[usize]) -> bool {
    fewer.iter().zip(more).all(|(fewer, more)| fewer <= more)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]

    /// Apart from rounding to whole tokens, a budget is the smallest size whose error bar is at
    /// most epsilon. A proof considers only the sizes of a fixed list.
    #[test]
    fn estimators_obey_their_laws(settings in settings(), stats in stats()) {
        use estimator_laws::{
            agrees, distrusts, falls, is_monotone, is_set, round_trips, scales,
        };
        for estimator in settings.estimators() {
            for law in [falls, agrees, distrusts, is_set, is_monotone, round_trips, scales] {
                prop_assert_eq!(law(&*estimator, &stats), Ok(()), "{:?}", estimator);
            }
            if settings.mode == Mode::Rigorous {
                let suffices = stats.b == stats.n_s
                    || estimator.radius(&stats).relative <= settings.epsilon;
                let tokens = required_size(&*estimator, &stats).tokens;
                prop_assert_eq!(tokens == stats.b, suffices);
            }
        }
    }

    /// The default mode takes the larger of the errors of the sums and of missed tokens, the strict
    /// mode their sum.
    #[test]
    fn the_bound_on_missed_tokens_is_part_of_the_bar(
        settings in settings(),
        stats in stats(),
        weight in 1e-6..1e-2_f64,
    ) {
        prop_assume!(settings.mode != Mode::Rigorous);
        let with_bound = |proved: bool| {
            let sum = weight * stats.d;
            let unseen = MissBounds { numerator: sum, denominator: sum, proved };
            SampleStats { bound: None, unseen: Some(unseen), ..stats }
        };
        let without_bound = SampleStats { bound: None, ..stats };
        let delta_sums = 0.9 * settings.delta;
        for estimator in (Settings { delta: delta_sums, ..settings }).estimators() {
            let name = estimator.typetag_name();
            if name == "hoeffding" {
                continue;
            }
            let radius = |mode: Mode, stats: &SampleStats| {
                let mut same = (Settings { mode, ..settings }).estimators();
                same.retain(|other| other.typetag_name() == name);
                same[0].radius(stats)
            };
            let bar_of_sums = estimator.radius(&without_bound).relative;
            let by_numerator = stats.d / stats.norm_n;
            let share = match settings.target {
                Target::Sdpa => by_numerator.hypot(1.0),
                Target::Numerator => by_numerator,
                Target::Denominator => 1.0,
            };
            let shift = (10.0 / settings.delta).ln() * weight * share;
            let bar = |radius: f64| bar_of_radius(radius, delta_sums);
            let sum = radius_of_bar(bar_of_sums, delta_sums) + shift;
            let default = radius(Mode::Default, &with_bound(true));
            let strict = radius(Mode::Strict, &with_bound(true));
            let close = |found: f64, want: f64| found == want || (found / want - 1.0).abs() < 1e-6;
            let larger = bar_of_sums.max(bar(shift));
            prop_assert!(close(default.relative, larger), "{estimator:?}: {default:?}");
            // Bars rise without limit as radii approach 1.
            let near_limit = (sum - 1.0).abs() < 1e-3;
            prop_assert!(
                near_limit || close(strict.relative, bar(sum)),
                "{estimator:?}: {strict:?}"
            );
            prop_assert!(!default.assumes.contains(Assumption::TailSeen));
            let not_proved = radius(Mode::Default, &with_bound(false));
            prop_assert!(not_proved.assumes.contains(Assumption::TailSeen));
        }
    }

    /// The last estimator, `hoeffding`, has no modes.
    #[test]
    fn strict_needs_no_fewer_tokens_than_default(settings in settings(), stats in stats()) {
        let default = Settings { mode: Mode::Default, ..settings }.tokens(&stats);
        let strict = Settings { mode: Mode::Strict, ..settings }.tokens(&stats);
        prop_assert!(all_at_most(&default[..default.len() - 1], &strict));
        let without_bound = SampleStats { bound: None, ..stats };
        let unbounded = Settings { mode: Mode::Strict, ..settings }.tokens(&without_bound);
        prop_assert!(all_at_most(&unbounded, &strict), "a bound adds the effect of missed tokens");
    }

    #[test]
    fn a_step_divides_delta_equally_among_its_heads(settings in settings(), stats in stats()) {
        let step = Settings { scope: Scope::Step, ..settings };
        let row = Settings { delta: settings.delta / 4.0, ..settings };
        prop_assert_eq!(step.tokens(&stats), row.tokens(&stats));
    }

    #[test]
    fn rigorous_checks_only_sizes_that_are_fixed_beforehand(
        settings in settings(),
        stats in stats(),
    ) {
        let settings = Settings { mode: Mode::Rigorous, ..settings };
        for tokens in settings.tokens(&stats) {
            let is_fixed = check_sizes(stats.n_s).any(|size| size == tokens);
            let is_due = is_fixed && tokens >= stats.b + stats.b / 8;
            prop_assert!(tokens == stats.b || tokens == stats.n_s || is_due);
        }
    }

    #[test]
    fn certificates_list_the_assumptions(settings in settings(), stats in stats()) {
        let all_but_tail =
            Assumptions::only(Assumption::Normal) | Assumptions::only(Assumption::Moments);
        for mode in MODES {
            let settings = Settings { mode, ..settings };
            let want = match mode {
                Mode::Strict if stats.bound.is_some() => (Kind::Asymptotic, all_but_tail),
                Mode::Default | Mode::Strict => (Kind::Asymptotic, Assumptions::ALL),
                Mode::Rigorous => (Kind::FiniteSample, Assumptions::NONE),
            };
            for (estimator, budget) in settings.estimators().iter().zip(settings.budgets(&stats)) {
                if estimator.typetag_name() != "hoeffding" {
                    prop_assert_eq!((budget.kind, budget.assumes), want);
                    let needs_proof = estimator.evidence() == SampleEvidence::Proof;
                    prop_assert_eq!(needs_proof, mode == Mode::Rigorous);
                }
                if mode == Mode::Rigorous && stats.bound.is_none() {
                    prop_assert_eq!(budget.tokens, stats.n_s);
                }
            }
        }
    }
}

/// A sample with small variances, from a residual whose weights are only known to be at most 1.
fn flat() -> SampleStats {
    SampleStats {
        drawn: 1000,
        b: 1000,
        n_s: 10_000,
        visible: 10_500,
        query_heads: 1,
        value_dim: 8,
        d: 10_000.0,
        d_certain: 5_000.0,
        norm_n: 10_000.0,
        drift: 0.0,
        var_e: 1e-8,
        trace_ev: 1e-8,
        trace_w: 1e-8,
        nu: 2.0,
        kurtosis_e: 3.0,
        kurtosis_w: 3.0,
        max_norm_v: 1.0,
        bound: Some(1.0),
        unseen: None,
    }
}

/// At most `ln(10/δ) / −ln(1 − b/n_s)` tokens are missed, and each changes the denominator by 1.
#[test]
fn strict_keeps_the_effect_of_missed_tokens_within_epsilon() {
    let settings = Settings { epsilon: 0.01, ..Settings::new(Target::Denominator, Mode::Strict) };
    let strict = settings.tokens(&flat())[0];
    let missed = |b: usize| (100.0_f64.ln() / -(1.0 - b as f64 / 10_000.0).ln()).floor();
    assert!(missed(strict) <= 0.01 * 10_000.0, "{} missed", missed(strict));
    assert!(missed(strict - 20) > 0.01 * 10_000.0, "{strict} is more than needed");
    assert!(settings.tokens(&SampleStats { bound: None, ..flat() })[0] < strict / 2);
}

/// A sample without a bound on the residual's weights, whose variances are uncertain.
fn uncertain() -> SampleStats {
    SampleStats {
        var_e: 0.01,
        trace_ev: 0.02,
        trace_w: 0.03,
        nu: 4.0,
        kurtosis_e: 5.0,
        kurtosis_w: 9.0,
        bound: None,
        ..flat()
    }
}

/// `Φ⁻¹(0.9) = 1.28155`.
#[test]
fn variances_are_raised_by_the_error_of_their_estimates() {
    let raise = |kurtosis: f64| 1.0 + 1.281_551_565_544_600_4 * ((kurtosis - 1.0) / 1000.0).sqrt();
    let raised = SampleStats {
        var_e: 0.01 * raise(5.0),
        trace_ev: 0.02 * raise(9.0),
        trace_w: 0.03 * raise(9.0),
        nu: 1.0 / (1.0 / 4.0 + 8.0 / 1000.0),
        // A kurtosis of 1 prevents a second increase.
        kurtosis_e: 1.0,
        kurtosis_w: 1.0,
        ..uncertain()
    };
    for target in [Target::Sdpa, Target::Denominator, Target::Numerator] {
        for mode in [Mode::Default, Mode::Strict] {
            let settings = Settings { epsilon: 0.005, ..Settings::new(target, mode) };
            let (found, expected) = (settings.tokens(&uncertain()), settings.tokens(&raised));
            assert_eq!(found, expected, "{target}, {mode:?}");
        }
    }
    let terms = Terms::new(Target::Sdpa, 0.005.try_into().unwrap(), 0.1.try_into().unwrap());
    let paper = Clt(Terms { combine: Combine::Paper, ..terms });
    let not_raised = SampleStats { kurtosis_e: 1.0, kurtosis_w: 1.0, ..uncertain() };
    assert_eq!(paper.radius(&uncertain()), paper.radius(&not_raised), "no allowance in the paper");
}

#[test]
fn strict_reserves_a_tenth_of_delta_for_missed_tokens() {
    let bounded = SampleStats { bound: Some(1e-12), ..uncertain() };
    for target in [Target::Sdpa, Target::Denominator] {
        let tokens = |delta, stats: &SampleStats| {
            let strict = Settings::new(target, Mode::Strict);
            Settings { epsilon: 0.005, delta, ..strict }.tokens(stats)
        };
        let (with, without) = (tokens(0.1, &bounded), tokens(0.09, &uncertain()));
        let near = |(a, b): (&usize, &usize)| a.abs_diff(*b) <= 1;
        assert!(with.iter().zip(&without).all(near), "{target}: {with:?} {without:?}");
    }
}

#[test]
fn promises_name_the_scope() {
    for mode in MODES {
        let settings = Settings { scope: Scope::Step, ..Settings::new(Target::Sdpa, mode) };
        for estimator in settings.estimators() {
            let promise = estimator.goal().unwrap().promise().unwrap();
            assert_eq!((promise.scope, promise.target), (Scope::Step, Target::Sdpa));
            assert_eq!((promise.epsilon, promise.delta), (fraction(0.1), fraction(0.1)));
        }
    }
}
