//! What modes and scopes make of a budget.

use proptest::prelude::*;
use vattention_core::{
    Estimator, Fraction, Kind, SampleStats, Target,
    pipeline::required_size,
    plugin::{Budget, SampleEvidence, check_sizes},
    promise::{Assumption, Assumptions, Scope},
    sample::Unseen,
};
use vattention_estimators::formula::{bar_of_radius, radius_of_bar};
use vattention_estimators::{Clt, Combine, Hoeffding, Mode, Ratio, SubGaussian, Terms};
use vattention_testkit::estimator_laws::{self, stats};

const MODES: [Mode; 3] = [Mode::Default, Mode::Strict, Mode::Rigorous];

/// What an estimator is told.
#[derive(Clone, Copy, Debug)]
struct Told {
    target: Target,
    epsilon: f64,
    delta: f64,
    mode: Mode,
    scope: Scope,
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

impl Told {
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

    /// Every estimator that can be told so.
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

fn told() -> impl Strategy<Value = Told> {
    let targets = prop::sample::select(vec![Target::Sdpa, Target::Denominator, Target::Numerator]);
    let modes = prop::sample::select(MODES.to_vec());
    (targets, modes, 0.01..0.5, 0.01..0.5).prop_map(|(target, mode, epsilon, delta)| Told {
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
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// But for rounding to whole tokens, a budget is the least whose radius is epsilon; a proof looks
    /// at the sizes of a list alone.
    #[test]
    fn estimators_obey_their_laws(told in told(), stats in stats()) {
        use estimator_laws::{
            agrees, distrusts, falls, is_monotone, is_set, round_trips, scales,
        };
        for estimator in told.estimators() {
            for law in [falls, agrees, distrusts, is_set, is_monotone, round_trips, scales] {
                prop_assert_eq!(law(&*estimator, &stats), Ok(()), "{:?}", estimator);
            }
            if told.mode == Mode::Rigorous {
                let enough = estimator.radius(&stats).relative <= told.epsilon;
                prop_assert_eq!(required_size(&*estimator, &stats).tokens == stats.b, stats.b == stats.n_s || enough);
            }
        }
    }

    /// What tokens of which a few draws are expected may add is counted, beside the rest or with it.
    #[test]
    fn what_a_sampler_knows_of_the_unseen_counts(told in told(), stats in stats(), weight in 1e-6..1e-2_f64) {
        prop_assume!(told.mode != Mode::Rigorous);
        let unseen = |proved: bool| {
            let one = weight * stats.d;
            let unseen = Unseen { numerator: one, denominator: one, proved };
            SampleStats { bound: None, unseen: Some(unseen), ..stats }
        };
        let less = Told { delta: 0.9 * told.delta, ..told };
        for estimator in less.estimators() {
            if estimator.typetag_name() == "hoeffding" {
                continue;
            }
            let seen = Told { mode: Mode::Default, ..told };
            let of = |mode: Mode, stats: &SampleStats| {
                let told = Told { mode, ..seen };
                let same = told.estimators().into_iter().find(|it| it.typetag_name() == estimator.typetag_name());
                same.unwrap().radius(stats)
            };
            let without = SampleStats { bound: None, ..stats };
            let bar_of_sums = estimator.radius(&without).relative;
            let by_numerator = stats.d / stats.norm_n;
            let share = match told.target {
                Target::Sdpa => by_numerator.hypot(1.0),
                Target::Numerator => by_numerator,
                Target::Denominator => 1.0,
            };
            let shift = (10.0 / told.delta).ln() * weight * share;
            let bar = |radius: f64| bar_of_radius(radius, less.delta);
            let together = radius_of_bar(bar_of_sums, less.delta) + shift;
            let (default, strict) = (of(Mode::Default, &unseen(true)), of(Mode::Strict, &unseen(true)));
            let close = |found: f64, want: f64| found == want || (found / want - 1.0).abs() < 1e-6;
            prop_assert!(close(default.relative, bar_of_sums.max(bar(shift))), "{estimator:?}: {default:?}");
            // Near the end bars rise without limit.
            prop_assert!((together - 1.0).abs() < 1e-3 || close(strict.relative, bar(together)), "{estimator:?}: {strict:?}");
            prop_assert!(!default.assumes.contains(Assumption::TailSeen));
            prop_assert!(of(Mode::Default, &unseen(false)).assumes.contains(Assumption::TailSeen));
        }
    }

    /// The last estimator, `hoeffding`, has no modes.
    #[test]
    fn strict_asks_for_no_less_than_default(told in told(), stats in stats()) {
        let default = Told { mode: Mode::Default, ..told }.tokens(&stats);
        let strict = Told { mode: Mode::Strict, ..told }.tokens(&stats);
        prop_assert!(all_at_most(&default[..default.len() - 1], &strict));
        let unbounded = SampleStats { bound: None, ..stats };
        let unbounded = Told { mode: Mode::Strict, ..told }.tokens(&unbounded);
        prop_assert!(all_at_most(&unbounded, &strict), "a bound counts what was missed");
    }

    #[test]
    fn a_step_gives_each_of_its_heads_an_equal_part(told in told(), stats in stats()) {
        let step = Told { scope: Scope::Step, ..told };
        let row = Told { delta: told.delta / 4.0, ..told };
        prop_assert_eq!(step.tokens(&stats), row.tokens(&stats));
    }

    /// So that the sizes looked at are known before anything is drawn.
    #[test]
    fn rigorous_asks_for_what_there_is_or_a_size_known_beforehand(told in told(), stats in stats()) {
        let told = Told { mode: Mode::Rigorous, ..told };
        for tokens in told.tokens(&stats) {
            let due = tokens >= stats.b + stats.b / 8 && check_sizes(stats.n_s).any(|s| s == tokens);
            prop_assert!(tokens == stats.b || tokens == stats.n_s || due);
        }
    }

    #[test]
    fn certificates_say_what_is_taken_for_granted(told in told(), stats in stats()) {
        let sure = Assumptions::only(Assumption::Normal) | Assumptions::only(Assumption::Moments);
        for mode in MODES {
            let told = Told { mode, ..told };
            let want = match mode {
                Mode::Strict if stats.bound.is_some() => (Kind::Asymptotic, sure),
                Mode::Default | Mode::Strict => (Kind::Asymptotic, Assumptions::ALL),
                Mode::Rigorous => (Kind::FiniteSample, Assumptions::NONE),
            };
            for (estimator, budget) in told.estimators().iter().zip(told.budgets(&stats)) {
                if estimator.typetag_name() != "hoeffding" {
                    prop_assert_eq!((budget.kind, budget.assumes), want);
                    prop_assert_eq!(estimator.evidence() == SampleEvidence::Proof, mode == Mode::Rigorous);
                }
                if mode == Mode::Rigorous && stats.bound.is_none() {
                    prop_assert_eq!(budget.tokens, stats.n_s);
                }
            }
        }
    }
}

/// A head whose residual may hide tokens of weight 1.
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

/// `ln(10/δ) / −ln(1 − b/n_s)` tokens may be missed, which change the denominator by 1 each.
#[test]
fn what_the_sample_missed_may_not_matter() {
    let told = Told { epsilon: 0.01, ..Told::new(Target::Denominator, Mode::Strict) };
    let strict = told.tokens(&flat())[0];
    let missed = |b: usize| (100.0_f64.ln() / -(1.0 - b as f64 / 10_000.0).ln()).floor();
    assert!(missed(strict) <= 0.01 * 10_000.0, "{} missed", missed(strict));
    assert!(missed(strict - 20) > 0.01 * 10_000.0, "{strict} is more than needed");
    assert!(told.tokens(&SampleStats { bound: None, ..flat() })[0] < strict / 2);
}

/// A residual of which nothing much can be hidden, and whose variances are uncertain.
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
        // So that these are not raised.
        kurtosis_e: 1.0,
        kurtosis_w: 1.0,
        ..uncertain()
    };
    for target in [Target::Sdpa, Target::Denominator, Target::Numerator] {
        for mode in [Mode::Default, Mode::Strict] {
            let told = Told { epsilon: 0.005, ..Told::new(target, mode) };
            let (found, expected) = (told.tokens(&uncertain()), told.tokens(&raised));
            assert_eq!(found, expected, "{target}, {mode:?}");
        }
    }
    let terms = Terms::new(Target::Sdpa, 0.005.try_into().unwrap(), 0.1.try_into().unwrap());
    let paper = Clt(Terms { combine: Combine::Paper, ..terms });
    let alike = SampleStats { kurtosis_e: 1.0, kurtosis_w: 1.0, ..uncertain() };
    assert_eq!(paper.radius(&uncertain()), paper.radius(&alike), "the paper raises nothing");
}

#[test]
fn strict_keeps_a_tenth_of_delta_for_what_is_unseen() {
    let bounded = SampleStats { bound: Some(1e-12), ..uncertain() };
    for target in [Target::Sdpa, Target::Denominator] {
        let tokens = |delta, stats: &SampleStats| {
            let told = Told { epsilon: 0.005, delta, ..Told::new(target, Mode::Strict) };
            told.tokens(stats)
        };
        let (with, without) = (tokens(0.1, &bounded), tokens(0.09, &uncertain()));
        let near = |(a, b): (&usize, &usize)| a.abs_diff(*b) <= 1;
        assert!(with.iter().zip(&without).all(near), "{target}: {with:?} {without:?}");
    }
}

#[test]
fn promises_name_the_scope() {
    for mode in MODES {
        let told = Told { scope: Scope::Step, ..Told::new(Target::Sdpa, mode) };
        for estimator in told.estimators() {
            let promise = estimator.goal().unwrap().promise().unwrap();
            assert_eq!((promise.scope, promise.target), (Scope::Step, Target::Sdpa));
            assert_eq!((promise.epsilon, promise.delta), (fraction(0.1), fraction(0.1)));
        }
    }
}
