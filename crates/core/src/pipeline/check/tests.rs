//! Estimates equal the truth on average over all samples that can be drawn.

use super::*;
use crate::{
    sample::{Order, Sample, Stratification, WeightedTokens},
    step::{Shape, Site, Softmax, Stream},
};

/// Values of the tokens, of dimension 2.
const VALUES: [[f32; 2]; 7] =
    [[1.0, 0.5], [0.3, -1.0], [2.0, 0.1], [-0.4, 0.6], [0.2, 0.2], [-1.5, 0.9], [0.7, -0.3]];
/// Weight `e` of each token.
const WEIGHTS: [f64; 7] = [0.9, 0.1, 0.4, 1.0, 0.3, 0.6, 0.05];

/// A design whose sample, probabilities and factors are fixed.
struct FixedDesign {
    /// Inclusion probability of each drawn token at the current size.
    p: Vec<f64>,
    /// Factor φ of each drawn token at the predicted size.
    factors: Vec<f64>,
    strata: Option<Stratification>,
}

impl Design for FixedDesign {
    fn extend(&mut self, _: usize, _: &mut Vec<u32>) {}

    fn probabilities(&self) -> Vec<f64> {
        self.p.clone()
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        self.factors.clone()
    }

    fn strata(&self) -> Option<Stratification> {
        self.strata.clone()
    }
}

/// Estimates, from the drawn tokens, of `Σ e` and of the variances of `Σ e` and `Σ e v` at a size.
fn estimates(drawn: &[usize], design: &FixedDesign, size: usize) -> [f64; 3] {
    let stats = check_sample(drawn, design, VALUES.len(), size);
    let (b, n_s) = (size as f64, VALUES.len() as f64);
    let uniform = n_s * n_s * (1.0 / b - 1.0 / n_s);
    [stats.d, stats.var_e * uniform, stats.trace_ev * uniform]
}

/// Statistics of the drawn tokens out of `n_s`, predicted for a size. Tokens beyond the end of
/// [`VALUES`] repeat it.
fn check_sample(drawn: &[usize], design: &dyn Design, n_s: usize, size: usize) -> SampleStats {
    with_sample(drawn, n_s, |sample| {
        let Sample { n_s, visible, query_heads, max_norm_v, .. } = *sample;
        let residual = Residual { n_s, visible, query_heads, max_norm_v, bound: None };
        let snapshot = DesignSnapshot::new(design, size);
        let weights = snapshot.weights();
        let tokens = WeightedTokens::new(sample, weights.p, weights.strata, 0.0);
        let sample = WeighedSample::new(&tokens, &weights);
        SampleCheck::new(&snapshot, 0, sample, &residual).predict(size)
    })
}

fn with_sample<T>(drawn: &[usize], n_s: usize, show: impl FnOnce(&Sample<'_>) -> T) -> T {
    let e: Vec<f64> = drawn.iter().map(|token| WEIGHTS[token % VALUES.len()]).collect();
    let values: Vec<f32> = drawn.iter().flat_map(|token| VALUES[token % VALUES.len()]).collect();
    show(&Sample {
        e: &e,
        values: &values,
        certain: &Softmax::new(2),
        n_s,
        visible: n_s,
        query_heads: 1,
        max_norm_v: 2.0,
        bound: None,
    })
}

fn subsets(count: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1_usize << count).map(move |set| (0..count).filter(|i| set >> i & 1 == 1).collect())
}

fn assert_near(found: [f64; 3], want: [f64; 3]) {
    for (found, want) in found.into_iter().zip(want) {
        assert!((found / want - 1.0).abs() < 1e-12, "{found}, not {want}");
    }
}

/// `e`, and the two elements of `e v`.
fn terms(token: usize) -> [f64; 3] {
    let (e, [x, y]) = (WEIGHTS[token], VALUES[token].map(f64::from));
    [e, e * x, e * y]
}

#[test]
fn variances_of_independent_draws_are_unbiased() {
    let now = [0.3, 0.6, 0.25, 0.9, 1.0, 0.5, 0.4];
    let then = now.map(|p: f64| (1.3 * p).min(1.0));
    let mut found = [0.0; 3];
    for drawn in subsets(now.len()).skip(1) {
        let chance: f64 = (0..now.len())
            .map(|i| if drawn.contains(&i) { now[i] } else { 1.0 - now[i] })
            .product();
        let p = drawn.iter().map(|&i| now[i]).collect();
        let factors = drawn.iter().map(|&i| (1.0 / then[i] - 1.0) / now[i]).collect();
        let design = FixedDesign { p, factors, strata: None };
        let estimates = estimates(&drawn, &design, 5);
        found.iter_mut().zip(estimates).for_each(|(sum, x)| *sum += chance * x);
    }
    let mut want = [WEIGHTS.iter().sum(), 0.0, 0.0];
    for (token, p) in then.into_iter().enumerate() {
        let [e, x, y] = terms(token);
        want[1] += e * e * (1.0 / p - 1.0);
        want[2] += (x * x + y * y) * (1.0 / p - 1.0);
    }
    assert_near(found, want);
}

/// Samples of two tokens from each of two strata predict the variances for three tokens from each.
/// Returns the average estimates over all such samples, and the true values. The strata have three
/// and four tokens, and are neighbours if `neighbours` is true.
fn averages_of_two_strata(neighbours: bool) -> [[f64; 3]; 2] {
    let strata = [0..3, 3..7];
    let factor = |tokens: usize, then: f64| {
        let tokens = tokens as f64;
        tokens * tokens * (1.0 / then - 1.0 / tokens)
    };
    let lists = if neighbours { vec![vec![1], vec![0]] } else { vec![Vec::new(); 2] };
    let (mut found, mut samples) = ([0.0; 3], 0.0);
    for drawn in subsets(VALUES.len()).filter(|drawn| {
        strata.iter().all(|tokens| drawn.iter().filter(|&i| tokens.contains(i)).count() == 2)
    }) {
        let stratum: Vec<usize> = drawn.iter().map(|&i| usize::from(i >= 3)).collect();
        let p = stratum.iter().map(|&h| 2.0 / strata[h].len() as f64).collect();
        let factor = |&h: &usize| {
            let size = strata[h].len();
            factor(size, 3.0) / Stratification::degrees_of_freedom(2, size, lists[h].len())
        };
        let factors = stratum.iter().map(factor).collect();
        let strata = Some(Stratification { strata: stratum, neighbours: lists.clone() });
        let estimates = estimates(&drawn, &FixedDesign { p, factors, strata }, 6);
        found.iter_mut().zip(estimates).for_each(|(sum, x)| *sum += x);
        samples += 1.0;
    }
    assert_eq!(samples, 18.0);
    let mut want = [WEIGHTS.iter().sum(), 0.0, 0.0];
    for tokens in strata {
        let count = tokens.len() as f64;
        let variance = |x: &dyn Fn(usize) -> f64| {
            let mean = tokens.clone().map(x).sum::<f64>() / count;
            tokens.clone().map(|i| (x(i) - mean).powi(2)).sum::<f64>() / (count - 1.0)
        };
        let factor = factor(tokens.len(), 3.0);
        want[1] += factor * variance(&|i| terms(i)[0]);
        want[2] += factor * (variance(&|i| terms(i)[1]) + variance(&|i| terms(i)[2]));
    }
    [found.map(|sum| sum / samples), want]
}

#[test]
fn variances_of_draws_within_strata_are_unbiased() {
    let [found, want] = averages_of_two_strata(false);
    assert_near(found, want);
}

#[test]
fn variances_about_the_centre_of_neighbours_are_too_large_on_average() {
    let [found, want] = averages_of_two_strata(true);
    assert!((found[0] / want[0] - 1.0).abs() < 1e-12, "{found:?}, not {want:?}");
    for (found, want) in found.into_iter().zip(want).skip(1) {
        assert!(found > want, "{found}, not more than {want}");
    }
}

/// The effective rank is not compared: only one of the two computations weights the pairs.
#[test]
fn statistics_of_a_uniform_sample_equal_those_from_its_sums() {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 2 };
    let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
    let order = Order::new(300, &Stream::new(&site, 0, 0, 0));
    let drawn: Vec<usize> = order.tokens().take(40).collect();
    let (n_s, b) = (300.0, 40.0);
    let factor = n_s * n_s * (1.0 / b - 1.0 / n_s) / (b - 1.0);
    let design = FixedDesign {
        p: vec![b / n_s; 40],
        factors: vec![factor; 40],
        strata: Some(Stratification::single(40)),
    };
    let check = check_sample(&drawn, &design, 300, 40);
    let sums = with_sample(&drawn, 300, SampleStats::new);
    let numbers = |stats: &SampleStats| {
        [
            stats.d,
            stats.norm_n,
            stats.var_e,
            stats.trace_ev,
            stats.trace_w,
            stats.kurtosis_e,
            stats.kurtosis_w,
            stats.drift,
        ]
    };
    for (found, want) in numbers(&check).into_iter().zip(numbers(&sums)) {
        assert!((found / want - 1.0).abs() < 1e-9, "{check:?}, not {sums:?}");
    }
}

/// A factor that is NaN makes the variance NaN, and a factor whose square overflows makes the error
/// of the variance infinite or NaN.
#[test]
fn numbers_that_are_not_finite_do_not_become_zero() {
    let drawn = [0, 1, 2, 3, 4];
    for strata in [None, Some(Stratification::single(5))] {
        let check = |factor: f64| {
            let mut factors = vec![1.0; 5];
            factors[1] = factor;
            let design = FixedDesign { p: vec![0.5; 5], factors, strata: strata.clone() };
            check_sample(&drawn, &design, VALUES.len(), 5)
        };
        let stats = check(f64::NAN);
        assert!(stats.trace_w.is_nan() && stats.var_e.is_nan() && stats.nu == 1.0, "{stats:?}");
        assert!(stats.with_raised_variances(1.0).trace_w.is_nan());
        let stats = check(1e200);
        assert!(!(stats.kurtosis_w.is_finite() && stats.kurtosis_e.is_finite()), "{stats:?}");
        assert!(!stats.with_raised_variances(1.0).trace_w.is_finite());
    }
}
