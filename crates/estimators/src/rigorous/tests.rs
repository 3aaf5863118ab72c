use vattention_core::{
    Shape, Site,
    sample::Sample,
    step::{Softmax, Stream},
};

use super::*;

const DIM: usize = 2;

/// Weights and values of the residual, and the sums over tokens that are always read.
struct Population {
    e: Vec<f64>,
    values: Vec<[f64; DIM]>,
    d_certain: f64,
    centre: [f64; DIM],
}

/// Estimated or exact denominator and numerator.
struct Sums {
    d: f64,
    n: [f64; DIM],
}

fn norm(x: [f64; DIM]) -> f64 {
    x[0].hypot(x[1])
}

fn difference(a: [f64; DIM], b: [f64; DIM]) -> f64 {
    norm([a[0] - b[0], a[1] - b[1]])
}

impl Population {
    /// Random population of up to 12 tokens. Most weights are small in some populations, and nearly
    /// equal in others.
    fn new(seed: u64) -> Self {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: DIM };
        let site = Site { seed, sequence: 0, layer: 0, kv_head: 0, shape };
        let words = Stream::new(&site, 1, 0, 0).words();
        let mut uniform = words.map(|word| (f64::from(word) + 0.5) / 2.0_f64.powi(32));
        let mut next = || uniform.next().unwrap();
        let n = 4 + (9.0 * next()) as usize;
        let (skew, mean) = (8.0 * next(), next());
        Self {
            e: (0..n).map(|_| next().powf(skew)).collect(),
            values: (0..n).map(|_| [mean + next() - 0.5, next() - 0.5]).collect(),
            d_certain: 10.0_f64.powf(3.0 * next() - 1.0),
            centre: [mean, next() - 0.5],
        }
    }

    /// Sums over the tokens that are always read and, multiplied by `scale`, over those of
    /// `sample`.
    fn sums(&self, sample: &[usize], scale: f64) -> Sums {
        let mut sums = Sums { d: self.d_certain, n: self.centre.map(|c| self.d_certain * c) };
        for &i in sample {
            let e = scale * self.e[i];
            sums.d += e;
            sums.n.iter_mut().zip(self.values[i]).for_each(|(n, v)| *n += e * v);
        }
        sums
    }

    fn all(&self) -> Sums {
        self.sums(&(0..self.e.len()).collect::<Vec<_>>(), 1.0)
    }

    fn scale(&self, sample: &[usize]) -> f64 {
        self.e.len() as f64 / sample.len() as f64
    }

    /// Statistics of a sample.
    fn stats(&self, sample: &[usize]) -> SampleStats {
        let n_s = self.e.len();
        let norms = self.values.iter().chain([&self.centre]).map(|&v| norm(v));
        let values: Vec<f32> =
            sample.iter().flat_map(|&i| self.values[i]).map(|x| x as f32).collect();
        SampleStats::new(&Sample {
            e: &sample.iter().map(|&i| self.e[i]).collect::<Vec<_>>(),
            values: &values,
            certain: &Softmax::from_sums(
                0.0,
                self.d_certain,
                self.centre.map(|c| self.d_certain * c).to_vec(),
            ),
            n_s,
            visible: n_s + 1,
            query_heads: 1,
            max_norm_v: norms.fold(0.0, f64::max),
            bound: Some(self.e.iter().copied().fold(0.0, f64::max)),
        })
    }

    /// All samples of size `b`.
    fn samples(&self, b: usize) -> impl Iterator<Item = Vec<usize>> {
        let n = self.e.len();
        let sets = (0..1_u32 << n).filter(move |set| set.count_ones() as usize == b);
        sets.map(move |set| (0..n).filter(|i| set >> i & 1 == 1).collect())
    }

    /// Relative error of a target, as estimated from a sample.
    fn error(&self, target: Target, sample: &[usize]) -> f64 {
        let (got, want) = (self.sums(sample, self.scale(sample)), self.all());
        let output = |sums: &Sums| sums.n.map(|n| n / sums.d);
        match target {
            Target::Denominator => (got.d - want.d).abs() / want.d,
            Target::Numerator => difference(got.n, want.n) / norm(want.n),
            Target::Sdpa => difference(output(&got), output(&want)) / norm(output(&want)),
        }
    }

    /// `|U^ − U|` and `|D^ − D|`.
    fn errors_of_sums(&self, sample: &[usize]) -> (f64, f64) {
        let (got, want) = (self.sums(sample, self.scale(sample)), self.all());
        let u = |sums: &Sums| [0, 1].map(|j| sums.n[j] - self.centre[j] * sums.d);
        (difference(u(&got), u(&want)), (got.d - want.d).abs())
    }
}

const TARGETS: [Target; 3] = [Target::Sdpa, Target::Numerator, Target::Denominator];

/// All samples of small populations.
#[test]
fn each_bound_fails_with_its_share_of_delta_at_most() {
    for seed in 0..60 {
        let population = Population::new(seed);
        let b = 2 + seed as usize % (population.e.len() - 3);
        let (mut samples, mut wrong) = (0.0, [0.0; 2]);
        let mut allowed = 0.0;
        for sample in population.samples(b) {
            let stats = population.stats(&sample);
            let proof = Proof::new(Target::Sdpa, 0.99, &stats, stats.bound.unwrap());
            let (u, d) = population.errors_of_sums(&sample);
            let events = [u > proof.radius_u(b), d > proof.radius_d(b)];
            wrong.iter_mut().zip(events).for_each(|(wrong, event)| *wrong += f64::from(event));
            samples += 1.0;
            allowed = proof.delta;
        }
        // The radius of U depends on two bounds.
        for (wrong, allowed) in wrong.into_iter().zip([2.0 * allowed, allowed]) {
            assert!(wrong <= allowed * samples, "{seed}: {wrong} of {samples}");
        }
    }
}

/// Most samples miss the one heavy token, which dominates the mean square.
#[test]
fn the_mean_square_is_bounded_even_if_the_sample_misses_a_heavy_token() {
    let mut population = Population::new(0);
    population.e = (0..12).map(|i| if i == 5 { 1.0 } else { 0.01 }).collect();
    population.values = vec![[1.0, 0.0]; 12];
    let truth = population.e.iter().map(|e| e * e).sum::<f64>() / 12.0;
    for b in 2..=4 {
        let samples: Vec<_> = population.samples(b).collect();
        let is_wrong = |sample: &&Vec<usize>| {
            let stats = population.stats(sample);
            let proof = Proof::new(Target::Sdpa, 0.9, &stats, 1.0);
            proof.mean_square(b, proof.means.rms_e, 1.0) < truth
        };
        let wrong = samples.iter().filter(is_wrong).count();
        assert!(wrong as f64 <= 0.3 * samples.len() as f64, "{b}: {wrong} of {}", samples.len());
    }
}

/// All samples of small populations.
#[test]
fn sufficient_samples_break_the_promise_with_probability_delta_at_most() {
    let mut enough = 0;
    for seed in 0..60 {
        let population = Population::new(seed);
        let b = population.e.len() - 1 - seed as usize % 3;
        for target in TARGETS {
            let epsilon = 0.6;
            let (mut samples, mut wrong) = (0, 0);
            for sample in population.samples(b) {
                let stats = population.stats(&sample);
                let claims = radius(target, 0.5, &stats).relative <= epsilon;
                enough += usize::from(claims);
                samples += 1;
                wrong += usize::from(claims && population.error(target, &sample) > epsilon);
            }
            assert!(wrong * 2 <= samples, "{seed}, {target}: {wrong} of {samples}");
        }
    }
    assert!(enough > 1000, "only {enough} samples were enough");
}

/// The condition for a sufficient sample follows from the bounds.
#[test]
fn sufficient_samples_are_within_epsilon_where_every_bound_holds() {
    let (mut enough, mut near) = (0, 0);
    for seed in 0..400 {
        let population = Population::new(seed);
        let b = 2 + seed as usize % (population.e.len() - 3);
        for target in TARGETS {
            let epsilon = 0.9;
            for sample in population.samples(b).step_by(7) {
                let stats = population.stats(&sample);
                let mut proof = Proof::new(target, 0.5, &stats, stats.bound.unwrap());
                proof.delta = 1.0; // The implication holds for any radii: these are small.
                let (u, d) = population.errors_of_sums(&sample);
                let n = norm([0, 1].map(|j| {
                    population.sums(&sample, population.scale(&sample)).n[j] - population.all().n[j]
                }));
                let radius_n = proof.radius(b, proof.means.rms_ev, proof.bound * stats.max_norm_v);
                let bounds_hold = match target {
                    Target::Sdpa => u <= proof.radius_u(b) && d <= proof.radius_d(b),
                    Target::Numerator => n <= radius_n,
                    Target::Denominator => {
                        d <= proof.radius(b, proof.means.rms_e, proof.bound).min(proof.radius_d(b))
                    }
                };
                if bounds_hold && proof.error(b) <= epsilon {
                    let error = population.error(target, &sample);
                    assert!(error <= epsilon, "{seed}, {target}: {error}");
                    enough += 1;
                    near += usize::from(error > 0.3 * epsilon);
                }
            }
        }
    }
    assert!(enough > 1000 && near > 10, "{enough} enough, {near} near epsilon");
}

/// Statistics of a residual of weight 0 beside always-read tokens with an output of length
/// `output`.
fn weightless_residual(output: f64) -> SampleStats {
    let nothing = Population::new(1).stats(&[0, 1, 2]);
    SampleStats {
        drawn: 300,
        b: 300,
        n_s: 1000,
        d: 10.0,
        d_certain: 10.0,
        norm_n: 10.0 * output,
        drift: 0.0,
        var_e: 0.0,
        trace_w: 0.0,
        max_norm_v: 1.0,
        bound: Some(1.0),
        ..nothing
    }
}

fn sdpa_proof(stats: &SampleStats) -> Proof<'_> {
    Proof::new(Target::Sdpa, 0.6, stats, 1.0)
}

/// A sample from 1000 tokens may be checked five times: first, and at 256, 384, 576 and 864.
#[test]
fn delta_is_divided_over_every_check_and_every_bound() {
    let size = Some(Size::Tokens(100));
    assert_eq!(
        [(None, None), (None, size), (size, None)]
            .map(|(size, limit)| count_checks(size, limit, 1000)),
        [5, 6, 1]
    );
    let events = |target| 0.6 / Proof::new(target, 0.6, &weightless_residual(0.5), 1.0).delta;
    let targets = [Target::Sdpa, Target::Denominator, Target::Numerator];
    assert_eq!(targets.map(|target| events(target).round()), [3.0, 3.0, 2.0]);
}

/// `|u| ≤ B (V + |c|)`, with the bound `|c| ≤ |o^| + |o^ − c|`.
#[test]
fn the_range_includes_the_length_of_the_centre() {
    let radius = |output| sdpa_proof(&weightless_residual(output)).radius_u(300);
    assert!((radius(0.8) / radius(0.2) - 1.8 / 1.2).abs() < 1e-9);
}

/// `rms u ≤ rms w + |o^ − c| rms e`.
#[test]
fn the_drift_of_the_output_increases_the_spread() {
    let radius = |drift, d_certain| {
        let stats =
            SampleStats { drift, d_certain, d: d_certain + 500.0, ..weightless_residual(0.0) };
        let stats = SampleStats { norm_n: 2.0 * stats.d, ..stats }; // The bound on |c| is V.
        sdpa_proof(&stats).radius_u(300)
    };
    assert!(radius(1.0, 0.0) > 1.1 * radius(0.0, 0.0));
}
