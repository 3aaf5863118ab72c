//! Estimates average to the truth over all samples that can be drawn.

use super::*;
use crate::{
    sample::{Order, Sample, Stratification},
    step::{Shape, Site, Softmax, Stream},
};

/// Tokens of two numbers, and what each weighs.
const VALUES: [[f32; 2]; 7] =
    [[1.0, 0.5], [0.3, -1.0], [2.0, 0.1], [-0.4, 0.6], [0.2, 0.2], [-1.5, 0.9], [0.7, -0.3]];
const WEIGHTS: [f64; 7] = [0.9, 0.1, 0.4, 1.0, 0.3, 0.6, 0.05];

/// A sample that is given, of a design that is known.
struct Given {
    /// Now, of each token drawn.
    p: Vec<f64>,
    factors: Vec<f64>,
    strata: Option<Stratification>,
}

impl Design for Given {
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
        let snapshot = DesignSnapshot::new(design, size);
        let strata = snapshot.strata.as_ref();
        let sample = Weighed::new(sample, &snapshot.probabilities, strata, 0.0);
        SampleCheck::new(design, &snapshot, 0, &sample, &residual).predict(size)
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

/// Averages over all samples of two tokens each from strata of three and four tokens, as estimated
/// for a size of three tokens each, and the truth. The strata are neighbours, or not.
fn averages_of_two_strata(neighbours: bool) -> [[f64; 3]; 2] {
    let strata = [0..3, 3..7];
    let factor = |tokens: usize, then: f64| {
        let tokens = tokens as f64;
        tokens * tokens * (1.0 / then - 1.0 / tokens)
    };
    let lists = if neighbours { vec![vec![1], vec![0]] } else { vec![Vec::new(); 2] };
    let (mut found, mut samples) = ([0.0; 3], 0.0);
    for drawn in subsets(VALUES.len()).filter(|drawn| {
        strata.iter().all(|of| drawn.iter().filter(|&i| of.contains(i)).count() == 2)
    }) {
        let of: Vec<usize> = drawn.iter().map(|&i| usize::from(i >= 3)).collect();
        let p = of.iter().map(|&h| 2.0 / strata[h].len() as f64).collect();
        let factor = |&h: &usize| {
            let size = strata[h].len();
            factor(size, 3.0) / Stratification::degrees_of_freedom(2, size, lists[h].len())
        };
        let factors = of.iter().map(factor).collect();
        let strata = Some(Stratification { strata: of, neighbours: lists.clone() });
        let estimates = estimates(&drawn, &Given { p, factors, strata }, 6);
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

/// But for the rank, of which the weights of pairs are part here.
#[test]
fn of_a_uniform_sample_it_is_what_sums_say() {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 2 };
    let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
    let order = Order::new(300, &Stream::new(&site, 0, 0, 0));
    let drawn: Vec<usize> = order.tokens().take(40).collect();
    let (n_s, b) = (300.0, 40.0);
    let factor = n_s * n_s * (1.0 / b - 1.0 / n_s) / (b - 1.0);
    let design = Given {
        p: vec![b / n_s; 40],
        factors: vec![factor; 40],
        strata: Some(Stratification::single(40)),
    };
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
            stats.drift,
        ]
    };
    for (found, want) in numbers(&look).into_iter().zip(numbers(&sums)) {
        assert!((found / want - 1.0).abs() < 1e-9, "{look:?}, not {sums:?}");
    }
}

/// Tokens of equal weight with given values, drawn within strata of 20 in succession that are
/// neighbours of those beside them.
fn of_strata(values: &[[f64; 2]]) -> (Weighed, Stratification) {
    let strata: Vec<usize> = (0..values.len()).map(|i| i / 20).collect();
    let last = strata[values.len() - 1];
    let beside = |h: usize| [h.wrapping_sub(1), h + 1].into_iter().filter(|&h| h <= last).collect();
    let strata = Stratification { strata, neighbours: (0..=last).map(beside).collect() };
    let values: Vec<f32> = values.iter().flatten().map(|&x| x as f32).collect();
    let (e, p) = (vec![1.0; values.len() / 2], vec![1.0; values.len() / 2]);
    let certain = Softmax::new(2);
    let sample = Sample {
        e: &e,
        values: &values,
        certain: &certain,
        n_s: e.len(),
        visible: e.len(),
        query_heads: 1,
        max_norm_v: 2.0,
        bound: None,
    };
    (Weighed::new(&sample, &p, Some(&strata), 0.0), strata)
}

/// Effective ranks by pairs of any tokens, and by pairs within the strata.
fn ranks(values: &[[f64; 2]]) -> [f64; 2] {
    let (sample, Stratification { strata, .. }) = of_strata(values);
    let within = sample.within.as_ref().unwrap();
    let factors = vec![2.0; values.len()];
    let by_tokens = alignment_of_tokens(&sample, &factors, &Squares::new(&sample).w).unwrap();
    let squares = Squares::within(&sample, within, &strata).w;
    let by_strata = alignment_within(&sample, within, &strata, &factors, &squares);
    [1.0 / by_tokens, 1.0 / by_strata]
}

fn circle(i: usize) -> [f64; 2] {
    [((i * i) as f64).cos(), ((i * i) as f64).sin()]
}

/// Values go to and fro on a line, or round a circle, about the output.
#[test]
fn ranks_of_pairs() {
    let values = |shape: &dyn Fn(usize) -> [f64; 2]| -> Vec<[f64; 2]> {
        (0..500).map(shape).map(|[x, y]| [x + 0.7, y - 0.4]).collect()
    };
    for line in ranks(&values(&|i| [(i % 7) as f64 - 3.0, 0.0])) {
        assert!((line - 1.0).abs() < 1e-6, "1, not {line}");
    }
    for circle in ranks(&values(&circle)) {
        assert!((1.8..2.2).contains(&circle), "about 2, not {circle}");
    }
}

/// The difference between neighbours is one direction, however round each stratum is by itself.
#[test]
fn a_difference_between_neighbours_is_one_direction() {
    let values = |i: usize| {
        let [x, y] = circle(i).map(|x| 0.01 * x);
        [if i < 200 { 1.0 + x } else { x - 1.0 }, y]
    };
    let [_, rank] = ranks(&(0..400).map(values).collect::<Vec<_>>());
    assert!((1.0..1.1).contains(&rank), "about 1, not {rank}");
}

/// Strata that come one token each tell nothing of their directions.
#[test]
fn pairs_are_taken_within_strata() {
    let (sample, _) = of_strata(&(0..8).map(circle).collect::<Vec<_>>());
    let (products, squares) = (sample.within.clone().unwrap(), Squares::new(&sample).w);
    let alignment = |strata: [usize; 8]| {
        let centres = vec![products.centres[0]; 8];
        let within = Within { centres, ..products.clone() };
        alignment_within(&sample, &within, &strata, &[1.0; 8], &squares)
    };
    assert_eq!(alignment([0, 1, 2, 3, 4, 5, 6, 7]), 1.0);
    assert!(alignment([0, 0, 1, 1, 2, 2, 3, 3]) < 1.0);
}

/// A factor beyond f64 leaves no variance; one whose square is beyond it leaves no doubt of it that is
/// finite. Neither may look like a variance that is known.
#[test]
fn what_is_not_a_number_is_not_taken_for_zero() {
    let drawn = [0, 1, 2, 3, 4];
    for strata in [None, Some(Stratification::single(5))] {
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
