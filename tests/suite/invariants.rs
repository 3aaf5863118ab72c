//! What every statistic and every budget must satisfy, whatever the numbers.

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

/// A sample of a residual, beside one certain token.
#[derive(Clone, Debug)]
struct Drawn {
    e: Vec<f64>,
    values: Vec<f32>,
    certain: (f64, [f64; DIM]),
    n_s: usize,
}

impl Drawn {
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

    /// With each value, and the certain one, replaced.
    fn with_values(&self, change: impl Fn([f64; DIM]) -> [f64; DIM]) -> Self {
        let values = (0..self.e.len()).flat_map(|token| change(self.value(token)));
        let values = values.map(|x| x as f32).collect();
        Self { values, certain: (self.certain.0, change(self.certain.1)), ..self.clone() }
    }
}

prop_compose! {
    fn drawn()(b in 4usize..40)(
        e in prop::collection::vec(1e-3..5.0_f64, b),
        values in prop::collection::vec(-2.0..2.0_f32, b * DIM),
        certain in (0.1..20.0_f64, [1.0..2.0_f64, 0.5..1.0, -1.0..2.0]),
        more in 0usize..5000,
    ) -> Drawn {
        let n_s = e.len() + more;
        Drawn { e, values, certain, n_s }
    }
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

/// Every estimator that promises something, at some terms.
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

/// Whole tokens may differ by one where rounding errors fall.
fn alike(a: &[usize], b: &[usize]) -> bool {
    a.iter().zip(b).all(|(&a, &b)| a.abs_diff(b) <= 1)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_budget_depends_on_the_unit_of_weights(drawn in drawn(), power in -40..40) {
        let unit = 2.0_f64.powi(power);
        let scaled = Drawn {
            e: drawn.e.iter().map(|e| e * unit).collect(),
            certain: (drawn.certain.0 * unit, drawn.certain.1),
            ..drawn.clone()
        };
        prop_assert!(alike(&budgets(&drawn.stats(), 0.1, 0.1), &budgets(&scaled.stats(), 0.1, 0.1)));
    }

    /// Values in another unit too: promises are relative. (`max_norm_v`, which only Hoeffding's
    /// vectors need, is not scaled along.)
    #[test]
    fn no_estimated_budget_depends_on_the_unit_of_values(drawn in drawn(), power in -20..20) {
        let unit = 2.0_f64.powi(power);
        let scaled = drawn.with_values(|v| v.map(|x| x * unit));
        let (mut a, mut b) = (drawn.stats(), scaled.stats());
        (a.bound, b.bound) = (None, None);
        prop_assert!(alike(&budgets(&a, 0.1, 0.1), &budgets(&b, 0.1, 0.1)));
    }

    #[test]
    fn no_budget_depends_on_the_axes_of_values(drawn in drawn(), turn in 0.0..6.3_f64, swap: bool) {
        let (sin, cos) = turn.sin_cos();
        let turned = drawn.with_values(|[x, y, z]| {
            let (x, y) = (cos * x - sin * y, sin * x + cos * y);
            if swap { [z, x, -y] } else { [x, y, z] }
        });
        let (a, b) = (drawn.stats(), turned.stats());
        for (a, b) in [
            (a.norm_n, b.norm_n),
            (a.trace_ev, b.trace_ev),
            (a.trace_w, b.trace_w),
            (a.nu, b.nu),
            (a.kurtosis_w, b.kurtosis_w),
            (a.drift, b.drift),
        ] {
            // Turned values are rounded to f32 again.
            prop_assert!((a - b).abs() <= 1e-4 * (a.abs() + b.abs()), "{a} and {b}");
        }
    }

    /// Pairs of neighbours in the sample make the effective rank; nothing else knows an order.
    #[test]
    fn the_order_of_the_sample_changes_the_effective_rank_only(drawn in drawn(), by in 1usize..40) {
        let b = drawn.e.len();
        let place = |i: usize| (i + by) % b;
        let turned = Drawn {
            e: (0..b).map(|i| drawn.e[place(i)]).collect(),
            values: (0..b).flat_map(|i| drawn.value(place(i))).map(|x| x as f32).collect(),
            ..drawn.clone()
        };
        let (a, mut b) = (drawn.stats(), turned.stats());
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
    fn a_laxer_promise_never_costs_more(
        drawn in drawn(),
        epsilon in 0.01..0.4_f64,
        delta in 0.01..0.4_f64,
        laxer in 1.0..2.0_f64,
    ) {
        let stats = drawn.stats();
        let strict = budgets(&stats, epsilon, delta);
        for lax in [budgets(&stats, epsilon * laxer, delta), budgets(&stats, epsilon, delta * laxer)] {
            prop_assert!(strict.iter().zip(&lax).all(|(strict, lax)| lax <= strict), "{strict:?} {lax:?}");
        }
    }

    #[test]
    fn a_wider_residual_never_costs_less(drawn in drawn(), wider in 1.0..4.0_f64) {
        let narrow = drawn.stats();
        let wide = SampleStats {
            var_e: narrow.var_e * wider,
            trace_ev: narrow.trace_ev * wider,
            trace_w: narrow.trace_w * wider,
            bound: narrow.bound.map(|bound| bound * wider),
            ..narrow
        };
        let (narrow, wide) = (budgets(&narrow, 0.1, 0.1), budgets(&wide, 0.1, 0.1));
        prop_assert!(narrow.iter().zip(&wide).all(|(narrow, wide)| narrow <= wide), "{narrow:?} {wide:?}");
    }

    /// (eq. 12) `o^ − o = Σ weight · e (v − o) / D^`, for any weights: with `o` the output over all
    /// tokens, the weighted sum of `w` is the whole error.
    #[test]
    fn the_error_of_the_output_is_one_weighted_sum(drawn in drawn(), weights in prop::collection::vec(0.0..9.0_f64, 40)) {
        let b = drawn.e.len();
        let (mut all, mut some) = (Softmax::new(DIM), Softmax::new(DIM));
        for (token, weight) in weights.iter().enumerate().take(b) {
            let value: Vec<f32> = drawn.values[token * DIM..][..DIM].into();
            all.add(drawn.e[token].ln(), 1.0, &value);
            some.add(drawn.e[token].ln(), weight + 0.1, &value);
        }
        let (o, estimate) = (all.output(), some.output());
        let d: f64 = (0..b).map(|i| (weights[i] + 0.1) * drawn.e[i]).sum();
        for j in 0..DIM {
            let w: f64 = (0..b).map(|i| (weights[i] + 0.1) * drawn.e[i] * (drawn.value(i)[j] - o[j])).sum();
            prop_assert!((estimate[j] - o[j] - w / d).abs() < 1e-9);
        }
    }
}

/// (eq. 7) The estimate of `Tr(S²)` in the effective rank is unbiased: within 6 standard errors over
/// samples of Gaussians with variances 1, 2 and 4.
#[test]
fn the_trace_of_the_squared_covariance_is_unbiased() {
    let (trials, b) = (3000, 256);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
    let estimates = (0..trials).map(|_| {
        let values = (0..b).flat_map(|_| [1.0, 2.0_f64.sqrt(), 2.0].map(|sd| sd * normal()));
        let values: Vec<f32> = values.map(|x| x as f32).collect();
        let drawn = Drawn { e: vec![1.0; b], values, certain: (1.0, [0.0; DIM]), n_s: 100_000 };
        let SampleStats { nu, trace_w, .. } = drawn.stats();
        trace_w * trace_w * (1.0 / nu - 1.0 / b as f64)
    });
    let estimates: Vec<f64> = estimates.collect();
    let mean = estimates.iter().sum::<f64>() / f64::from(trials);
    let variance = estimates.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(trials);
    let error = (variance / f64::from(trials)).sqrt();
    assert!((mean - 21.0).abs() < 6.0 * error, "{mean} ± {error}");
}
