//! Promises at magnitudes whose squares f32 does not hold, on every backend, in every mode: 100 steps
//! of two heads for each count, at a level of 1e-6; and samples as large as those of the reference.

use crate::common;
use std::sync::Arc;

use ndarray::{Array1, Array3, s};
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, StandardNormal};
use rand_chacha::ChaCha8Rng;
use vattention::backends::{Cpu, Reference};
use vattention::config::Loader;
use vattention::cuda::Gpu;
use vattention::experiments::{Exact, binomial};
use vattention::trace::TraceLayer;
use vattention::{Backend, FallBack, Options, PipelineConfig};

const TOKENS: usize = 2000;
const DIM: usize = 8;
const STEPS: usize = 100;
const EMULATED_STEPS: usize = 8;
const EPSILON: f64 = 0.1;
const DELTA: f64 = 0.1;

/// What is extreme of a head.
#[derive(Clone, Copy, Debug)]
enum Odd {
    /// Values of this order that nearly cancel.
    Magnitude(f32),
    /// Tokens of value zero are so many nats above all that carry the output.
    Gap(f32),
}

const ODD: [Odd; 6] = [
    Odd::Magnitude(1e-30),
    Odd::Magnitude(1e-23),
    Odd::Magnitude(1e-9),
    Odd::Magnitude(1e15),
    Odd::Gap(52.0),
    Odd::Gap(75.0),
];

/// One KV head with two query heads.
fn layer(odd: Odd) -> TraceLayer {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut normal = || -> f32 { StandardNormal.sample(&mut rng) };
    let mut keys = Array3::from_shape_fn((1, TOKENS, 2), |_| 0.5 * normal());
    let mut values = Array3::from_shape_fn((1, TOKENS, DIM), |(_, _, j)| {
        normal() + if j == 0 { 0.7 } else { 0.0 }
    });
    match odd {
        Odd::Magnitude(magnitude) => values *= magnitude,
        Odd::Gap(nats) => {
            keys.slice_mut(s![0, ..;4, ..]).mapv_inplace(|logit| logit + nats);
            values.slice_mut(s![0, ..;4, ..]).fill(0.0);
        }
    }
    let queries = Array3::from_shape_fn((2, 1, 2), |(head, _, i)| f32::from(u8::from(i == head)));
    common::trace_layer(queries, keys, values)
}

fn pipeline(mode: &str) -> Arc<PipelineConfig> {
    let text = format!(
        "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.02\n\
         [estimator]\ntype = \"ratio\"\nepsilon = {EPSILON}\ndelta = {DELTA}\nmode = \"{mode}\"\n"
    );
    Loader::default().parse("odd.toml", &text).unwrap()
}

/// Violations of the worse head in so many steps, and the mean sample.
fn run(backend: &dyn Backend, mode: &str, layer: &TraceLayer, steps: usize) -> (usize, f64) {
    let shape = layer.shape();
    let options = Options { scale: Some(1.0), fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend.start(&pipeline(mode), 0, shape, &options).unwrap();
    attention.append(layer.keys.view(), layer.values.view()).unwrap();
    // The same query again and again: each step draws a sample of its own.
    let queries = Array3::from_shape_fn((2, steps, 2), |(head, _, i)| layer.queries[[head, 0, i]]);
    let output = attention.attend(queries.view(), None).unwrap();
    let norm = |x: &Array1<f64>| x.dot(x).sqrt();
    let exact = Exact::rows(layer, &shape, 1.0, 1);
    let violated = exact.iter().enumerate().map(|(head, exact)| {
        let wrong = |t: &usize| {
            let got = output.out.slice(s![head, *t, ..]).mapv(f64::from);
            let error = norm(&(got - &exact.output)) / norm(&exact.output);
            error.is_nan() || error > EPSILON
        };
        (0..steps).filter(wrong).count()
    });
    let sampled: usize = output.rows.iter().map(|row| row.sampled).sum();
    (violated.max().unwrap(), sampled as f64 / (2 * steps) as f64)
}

fn check(backend: &dyn Backend, odd: Odd, mode: &str, steps: usize) -> f64 {
    let (violated, sampled) = run(backend, mode, &layer(odd), steps);
    let cell = format!("{}, {odd:?}, {mode}: {violated} of {steps}", backend.name());
    println!("{cell}, {sampled:.0} sampled");
    assert!(binomial::p_value(violated, steps, DELTA) >= 1e-6, "{cell}");
    sampled
}

#[test]
fn promises_are_kept_at_any_magnitude() {
    for odd in ODD {
        for mode in ["default", "strict", "rigorous"] {
            let expected = check(&Reference, odd, mode, STEPS);
            let sampled = check(&Cpu::default(), odd, mode, STEPS);
            assert!((sampled / expected - 1.0).abs() < 0.01, "{odd:?}, {mode}: {sampled} sampled");
        }
        // A device may read everything instead.
        let Some(emulator) = common::emulator() else { continue };
        let expected = run(&Reference, "default", &layer(odd), EMULATED_STEPS).1;
        let sampled = check(&Gpu::new(emulator), odd, "default", EMULATED_STEPS);
        assert!(sampled / expected > 0.99, "{odd:?}: {sampled} sampled, {expected} expected");
    }
}
