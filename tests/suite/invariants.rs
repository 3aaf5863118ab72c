//! Invariants of statistics and budgets, for random samples.

use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, StandardNormal};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use vattention::estimators::{Clt, Combine, Hoeffding, Ratio, SubGaussian, Terms};
use vattention::{
    Fraction, Target,
    engine::Softmax,
    plugin::{Estimator, SampleStats, required_size},
    statistics::Sample,
};

const DIM: usize = 3;
const TARGETS: [Target; 3] = [Target::Denominator, Target::Numerator, Target::Sdpa];

/// A sample of a residual, and one deterministic token.
#[derive(Clone, Debug)]
struct RandomSample {
    e: Vec<f64>,
    values: Vec<f32>,
    certain: (f64, [f64; DIM]),
    n_s: usize,
}

impl RandomSample {
    fn stats(&self) -> SampleStats {
        let (e, v) = self.certain;
        let certain = Softmax::from_sums(0.0, e, v.iter().map(|v| e * v).collect());
        SampleStats::new(&Sample {
            e: &self.e,
            values: &self.values,
            certain: &certain,
            n_s: self.n_s,
            visible: self.n_s + 1,
            query_heads: 4,
            max_norm_v: 10.0,
            bound: Some(self.e.iter().copied().fold(0.0, f64::max)),
        })
    }

    fn value(&self, token: usize) -> [f64; DIM] {
        std::array::from_fn(|j| f64::from(self.values[token * DIM + j]))
    }

    /// Replaces each value, including that of the deterministic token.
    fn with_values(&self, change: impl Fn([f64; DIM]) -> [f64; DIM]) -> Self {
        let values = (0..self.e.len()).flat_map(|token| change(self.value(token)));
        let values = values.map(|x| x as f32).collect();
        Self { values, certain: (self.certain.0, change(self.certain.1)), ..self.clone() }
    }
}

prop_compose! {
    fn sample()(b in 4usize..40)(
        e in prop::collection::vec(1e-3..5.0_f64, b),
        values in prop::collection::vec(-2.0..2.0_f32, b * DIM),
        certain in (0.1..20.0_f64, [1.0..2.0_f64, 0.5..1.0, -1.0..2.0]),
        more in 0usize..5000,
    ) -> RandomSample {
        let n_s = e.len() + more;
        RandomSample { e, values, certain, n_s }
    }
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

/// All estimators with a promise of this epsilon and delta.
fn estimators(epsilon: f64, delta: f64) -> Vec<Box<dyn Estimator>> {
    let (epsilon, delta) = (fraction(epsilon), fraction(delta));
    let mut all: Vec<Box<dyn Estimator>> = vec![Box::new(Ratio::new(epsilon, delta))];
    for target in TARGETS {
        for combine in [Combine::Exact, Combine::Paper] {
            let terms = || Terms { combine, ..Terms::new(target, epsilon, delta) };
            all.push(Box::new(Clt(terms())));
            all.push(Box::new(SubGaussian(terms())));
        }
        all.push(Box::new(Hoeffding::new(target, epsilon, delta)));
    }
    all
}

fn budgets(stats: &SampleStats, epsilon: f64, delta: f64) -> Vec<usize> {
    estimators(epsilon, delta)
        .iter()
        .map(|estimator| required_size(&**estimator, stats).tokens)
        .collect()
}

/// Returns true if budgets are equal up to one token, the effect of rounding errors.
fn equal_up_to_rounding(a: &[usize], b: &[usize]) -> bool {
    a.iter().zip(b).all(|(&a, &b)| a.abs_diff(b) <= 1)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_budget_depends_on_the_unit_of_weights(sample in sample(), power in -40..40) {
        let unit = 2.0_f64.powi(power);
        let scaled = RandomSample {
            e: sample.e.iter().map(|e| e * unit).collect(),
            certain: (sample.certain.0 * unit, sample.certain.1),
            ..sample.clone()
        };
        let [a, b] = [sample, scaled].map(|sample| budgets(&sample.stats(), 0.1, 0.1));
        prop_assert!(equal_up_to_rounding(&a, &b));
    }

    /// Promises are relative, so that the unit of values does not matter either. (`max_norm_v`,
    /// which only Hoeffding's bound of vectors uses, is not scaled.)
    #[test]
    fn no_estimated_budget_depends_on_the_unit_of_values(sample in sample(), power in -20..20) {
        let unit = 2.0_f64.powi(power);
        let scaled = sample.with_values(|v| v.map(|x| x * unit));
        let (mut a, mut b) = (sample.stats(), scaled.stats());
        (a.bound, b.bound) = (None, None);
        prop_assert!(equal_up_to_rounding(&budgets(&a, 0.1, 0.1), &budgets(&b, 0.1, 0.1)));
    }

    #[test]
    fn no_budget_depends_on_the_axes_of_values(
        sample in sample(),
        angle in 0.0..6.3_f64,
        swap: bool,
    ) {
        let (sin, cos) = angle.sin_cos();
        let rotated = sample.with_values(|[x, y, z]| {
            let (x, y) = (cos * x - sin * y, sin * x + cos * y);
            if swap { [z, x, -y] } else { [x, y, z] }
        });
        let (a, b) = (sample.stats(), rotated.stats());
        for (a, b) in [
            (a.norm_n, b.norm_n),
            (a.trace_ev, b.trace_ev),
            (a.trace_w, b.trace_w),
            (a.nu, b.nu),
            (a.kurtosis_w, b.kurtosis_w),
            (a.drift, b.drift),
        ] {
            // Rotated values are rounded to f32 again.
            prop_assert!((a - b).abs() <= 1e-4 * (a.abs() + b.abs()), "{a} and {b}");
        }
    }

    /// The effective rank is computed from neighbours in the sample; no other statistic depends on
    /// the order.
    #[test]
    fn the_order_of_the_sample_changes_the_effective_rank_only(
        sample in sample(),
        shift in 1usize..40,
    ) {
        let b = sample.e.len();
        let place = |i: usize| (i + shift) % b;
        let shifted = RandomSample {
            e: (0..b).map(|i| sample.e[place(i)]).collect(),
            values: (0..b).flat_map(|i| sample.value(place(i))).map(|x| x as f32).collect(),
            ..sample.clone()
        };
        let (a, mut b) = (sample.stats(), shifted.stats());
        b.nu = a.nu;
        for (a, b) in [
            (a.d, b.d), (a.norm_n, b.norm_n), (a.var_e, b.var_e),
            (a.trace_ev, b.trace_ev), (a.trace_w, b.trace_w), (a.kurtosis_e, b.kurtosis_e),
            (a.kurtosis_w, b.kurtosis_w), (a.drift, b.drift),
        ] {
            prop_assert!((a - b).abs() <= 1e-9 * (a.abs() + b.abs()), "{a} and {b}");
        }
    }

    #[test]
    fn a_laxer_promise_never_needs_more_tokens(
        sample in sample(),
        epsilon in 0.01..0.4_f64,
        delta in 0.01..0.4_f64,
        laxer in 1.0..2.0_f64,
    ) {
        let stats = sample.stats();
        let strict = budgets(&stats, epsilon, delta);
        for (epsilon, delta) in [(epsilon * laxer, delta), (epsilon, delta * laxer)] {
            let lax = budgets(&stats, epsilon, delta);
            let fewer = strict.iter().zip(&lax).all(|(strict, lax)| lax <= strict);
            prop_assert!(fewer, "{strict:?} {lax:?}");
        }
    }

    #[test]
    fn a_larger_variance_never_needs_fewer_tokens(
        sample in sample(),
        wider in 1.0..4.0_f64,
    ) {
        let narrow = sample.stats();
        let wide = SampleStats {
            var_e: narrow.var_e * wider,
            trace_ev: narrow.trace_ev * wider,
            trace_w: narrow.trace_w * wider,
            bound: narrow.bound.map(|bound| bound * wider),
            ..narrow
        };
        let (narrow, wide) = (budgets(&narrow, 0.1, 0.1), budgets(&wide, 0.1, 0.1));
        let more = narrow.iter().zip(&wide).all(|(narrow, wide)| narrow <= wide);
        prop_assert!(more, "{narrow:?} {wide:?}");
    }

    /// Equation (12): `o^ − o = Σ weight · e (v − o) / D^` for any weights. If `o` is the output
    /// over all tokens, the weighted sum of `w` is the whole error.
    #[test]
    fn the_error_of_the_output_is_one_weighted_sum(
        sample in sample(),
        weights in prop::collection::vec(0.0..9.0_f64, 40),
    ) {
        let b = sample.e.len();
        let weights: Vec<f64> = weights.iter().map(|weight| weight + 0.1).collect();
        let (mut all, mut some) = (Softmax::new(DIM), Softmax::new(DIM));
        for (token, weight) in weights.iter().enumerate().take(b) {
            let value: Vec<f32> = sample.values[token * DIM..][..DIM].into();
            all.add(sample.e[token].ln(), 1.0, &value);
            some.add(sample.e[token].ln(), *weight, &value);
        }
        let (o, estimate) = (all.output(), some.output());
        let d: f64 = (0..b).map(|i| weights[i] * sample.e[i]).sum();
        for j in 0..DIM {
            let w = |i: usize| weights[i] * sample.e[i] * (sample.value(i)[j] - o[j]);
            let w: f64 = (0..b).map(w).sum();
            prop_assert!((estimate[j] - o[j] - w / d).abs() < 1e-9);
        }
    }
}

/// The estimate of `Tr(S²)` in the effective rank, equation (7), is unbiased: within 6 standard
/// errors over samples of Gaussians with variances 1, 2 and 4.
#[test]
fn the_trace_of_the_squared_covariance_is_unbiased() {
    let (trials, b) = (3000, 256);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
    let estimates = (0..trials).map(|_| {
        let values = (0..b).flat_map(|_| [1.0, 2.0_f64.sqrt(), 2.0].map(|sd| sd * normal()));
        let values: Vec<f32> = values.map(|x| x as f32).collect();
        let certain = (1.0, [0.0; DIM]);
        let sample = RandomSample { e: vec![1.0; b], values, certain, n_s: 100_000 };
        let SampleStats { nu, trace_w, .. } = sample.stats();
        trace_w * trace_w * (1.0 / nu - 1.0 / b as f64)
    });
    let estimates: Vec<f64> = estimates.collect();
    let mean = estimates.iter().sum::<f64>() / f64::from(trials);
    let variance = estimates.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(trials);
    let error = (variance / f64::from(trials)).sqrt();
    assert!((mean - 21.0).abs() < 6.0 * error, "{mean} ± {error}");
}
