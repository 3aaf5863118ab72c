//! Estimates average to the truth over all samples that can be drawn.

use super::*;
use crate::{Order, Sample, Shape, Site, Softmax, Stream};

/// Tokens of two numbers, and what each weighs.
const VALUES: [[f32; 2]; 7] =
    [[1.0, 0.5], [0.3, -1.0], [2.0, 0.1], [-0.4, 0.6], [0.2, 0.2], [-1.5, 0.9], [0.7, -0.3]];
const WEIGHTS: [f64; 7] = [0.9, 0.1, 0.4, 1.0, 0.3, 0.6, 0.05];

/// A sample that is given, of a design that is known.
struct Given {
    /// Now, of each token drawn.
    p: Vec<f64>,
    factors: Vec<f64>,
    strata: Option<Vec<usize>>,
}

impl Design for Given {
    fn extend(&mut self, _: usize, _: &mut Vec<u32>) {}

    fn probabilities(&self) -> Vec<f64> {
        self.p.clone()
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        self.factors.clone()
    }

    fn strata(&self) -> Option<Vec<usize>> {
        self.strata.clone()
    }
}

/// Estimates from the tokens drawn: of `Σ e`, and of the variances of `Σ e` and `Σ e v` at a size.
fn estimates(drawn: &[usize], design: &Given, size: usize) -> [f64; 3] {
    let stats = looked_at(drawn, design, VALUES.len(), size);
    let (b, n_s) = (size as f64, VALUES.len() as f64);
    let alike = n_s * n_s * (1.0 / b - 1.0 / n_s);
    [stats.d, stats.var_e * alike, stats.trace_ev * alike]
}

/// What a look at the tokens drawn says, of `n_s`; tokens beyond those that have values repeat them.
fn looked_at(drawn: &[usize], design: &dyn Design, n_s: usize, size: usize) -> SampleStats {
    with_sample(drawn, n_s, |sample| {
        let Sample { n_s, visible, query_heads, max_norm_v, .. } = *sample;
        let residual = Residual { n_s, visible, query_heads, max_norm_v, bound: None };
        let present = Present::new(design, size);
        let strata = present.strata.as_deref();
        let sample = Weighed::new(sample, &present.probabilities, strata, 0.0);
        Look::new(design, &present, 0, &sample, &residual).at(size)
    })
}

fn with_sample<T>(drawn: &[usize], n_s: usize, show: impl FnOnce(&Sample<'_>) -> T) -> T {
    let of = |token: &usize| token % VALUES.len();
    let e: Vec<f64> = drawn.iter().map(|token| WEIGHTS[of(token)]).collect();
    let values: Vec<f32> = drawn.iter().flat_map(|token| VALUES[of(token)]).collect();
    show(&Sample {
        e: &e,
        values: &values,
        certain: &Softmax::new(2),
        certain_norms: 0.0,
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

/// `e`, and the numbers of `e v`.
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
        let of = |f: &dyn Fn(usize) -> f64| drawn.iter().map(|&i| f(i)).collect();
        let factors = of(&|i| (1.0 / then[i] - 1.0) / now[i]);
        let design = Given { p: of(&|i| now[i]), factors, strata: None };
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

/// Two strata, of three and four tokens, of which two each are drawn; then three each.
#[test]
fn variances_of_draws_within_strata_are_unbiased() {
    let strata = [0..3, 3..7];
    let factor = |tokens: usize, then: f64| {
        let tokens = tokens as f64;
        tokens * tokens * (1.0 / then - 1.0 / tokens)
    };
    let (mut found, mut samples) = ([0.0; 3], 0.0);
    for drawn in subsets(VALUES.len()).filter(|drawn| {
        strata.iter().all(|of| drawn.iter().filter(|&i| of.contains(i)).count() == 2)
    }) {
        let of: Vec<usize> = drawn.iter().map(|&i| usize::from(i >= 3)).collect();
        let p = of.iter().map(|&h| 2.0 / strata[h].len() as f64).collect();
        // Divided by one less than the draws, which is one.
        let factors = of.iter().map(|&h| factor(strata[h].len(), 3.0)).collect();
        let design = Given { p, factors, strata: Some(of) };
        let estimates = estimates(&drawn, &design, 6);
        found.iter_mut().zip(estimates).for_each(|(sum, x)| *sum += x);
        samples += 1.0;
    }
    assert_eq!(samples, 18.0);
    let mut want = [WEIGHTS.iter().sum(), 0.0, 0.0];
    for of in strata {
        let tokens = of.len() as f64;
        let spread = |x: &dyn Fn(usize) -> f64| {
            let mean = of.clone().map(x).sum::<f64>() / tokens;
            of.clone().map(|i| (x(i) - mean).powi(2)).sum::<f64>() / (tokens - 1.0)
        };
        let factor = factor(of.len(), 3.0);
        want[1] += factor * spread(&|i| terms(i)[0]);
        want[2] += factor * (spread(&|i| terms(i)[1]) + spread(&|i| terms(i)[2]));
    }
    assert_near(found.map(|sum| sum / samples), want);
}

/// But for the rank, of which the weights of pairs are part here.
#[test]
fn of_a_uniform_sample_it_is_what_sums_say() {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 2 };
    let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
    let order = Order::new(300, &Stream::new(&site, 0, 0, 0));
    let drawn: Vec<usize> = order.tokens().take(40).collect();
    let (n_s, b) = (300.0, 40.0);
    let factor = n_s * n_s * (1.0 / b - 1.0 / n_s) / (b - 1.0);
    let design =
        Given { p: vec![b / n_s; 40], factors: vec![factor; 40], strata: Some(vec![0; 40]) };
    let look = looked_at(&drawn, &design, 300, 40);
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
            stats.sum_e_norm_v,
            stats.drift,
        ]
    };
    for (found, want) in numbers(&look).into_iter().zip(numbers(&sums)) {
        assert!((found / want - 1.0).abs() < 1e-9, "{look:?}, not {sums:?}");
    }
}

/// Tokens of equal weight, whose values go round a circle or to and fro on a line, about the output.
#[test]
fn ranks_of_pairs() {
    let out = [0.7, -0.4];
    let dot = |a: [f64; 2], b: [f64; 2]| a[0] * b[0] + a[1] * b[1];
    let rank = |of: &dyn Fn(usize) -> [f64; 2]| {
        let values: Vec<[f64; 2]> =
            (0..500).map(of).map(|[x, y]| [x + out[0], y + out[1]]).collect();
        let four = |four: &[[f64; 2]]| Weighed::PAIRS.map(|(i, j)| dot(four[i], four[j]));
        let sample = Weighed {
            e: vec![1.0; 500],
            norms: values.iter().map(|&v| dot(v, v).sqrt()).collect(),
            by_out: values.iter().map(|&v| dot(v, out)).collect(),
            out_squared: dot(out, out),
            fours: values.chunks_exact(Weighed::FOUR).map(four).collect(),
            ..Weighed::default()
        };
        let squares: Vec<f64> = (0..500).map(|i| dot(of(i), of(i))).collect();
        let factors = [2.0; 500];
        // Two and two of a stratum, then four.
        let strata: Vec<usize> =
            (0..500).map(|i| i / 4 * 2 + i % 4 / 2 * usize::from(i < 250)).collect();
        [
            alignment_of_tokens(&sample, &factors, &squares),
            alignment_of_differences(&sample, &strata, &factors),
        ]
        .map(|alignment| 1.0 / alignment.unwrap())
    };
    for line in rank(&|i| [(i % 7) as f64 - 3.0, 0.0]) {
        assert!((line - 1.0).abs() < 1e-9, "1, not {line}");
    }
    for circle in rank(&|i| [((i * i) as f64).cos(), ((i * i) as f64).sin()]) {
        assert!((1.8..2.2).contains(&circle), "about 2, not {circle}");
    }
}

/// Strata that come one token each tell nothing of their spread.
#[test]
fn differences_are_taken_within_strata() {
    let sample = Weighed {
        e: vec![1.0; 8],
        norms: vec![1.0; 8],
        by_out: vec![0.0; 8],
        fours: vec![[0.5; 6]; 2],
        ..Weighed::default()
    };
    let alignment = |strata: &[usize]| alignment_of_differences(&sample, strata, &[1.0; 8]);
    assert_eq!(alignment(&[0, 1, 2, 3, 4, 5, 6, 7]), None);
    assert_eq!(alignment(&[0, 0, 1, 2, 3, 3, 3, 4]), None);
    assert_eq!(alignment(&[0, 1, 1, 0, 2, 2, 2, 2]), Some(0.0));
}

/// A factor beyond f64 leaves no variance; one whose square is beyond it leaves no doubt of it that is
/// finite. Neither may look like a variance that is known.
#[test]
fn what_is_not_a_number_is_not_taken_for_zero() {
    let drawn = [0, 1, 2, 3, 4];
    for strata in [None, Some(vec![0; 5])] {
        let look = |factor: f64| {
            let mut factors = vec![1.0; 5];
            factors[1] = factor;
            let design = Given { p: vec![0.5; 5], factors, strata: strata.clone() };
            looked_at(&drawn, &design, VALUES.len(), 5)
        };
        let stats = look(f64::NAN);
        assert!(stats.trace_w.is_nan() && stats.var_e.is_nan() && stats.nu == 1.0, "{stats:?}");
        assert!(stats.raised(1.0).trace_w.is_nan());
        let stats = look(1e200);
        assert!(!(stats.kurtosis_w.is_finite() && stats.kurtosis_e.is_finite()), "{stats:?}");
        assert!(!stats.raised(1.0).trace_w.is_finite());
    }
}
