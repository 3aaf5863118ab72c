//! Promises at magnitudes whose squares are out of the range of f32, on every backend and in every
//! mode. Each count is over 100 steps of two heads, at a significance level of 1e-6. Samples are as
//! large as those of the reference.

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

/// Extreme property of a head.
#[derive(Clone, Copy, Debug)]
enum Extreme {
    /// Values have this magnitude and nearly cancel.
    Magnitude(f32),
    /// Logits of tokens with value zero are larger than those of all other tokens by this number.
    Gap(f32),
}

const EXTREMES: [Extreme; 6] = [
    Extreme::Magnitude(1e-30),
    Extreme::Magnitude(1e-23),
    Extreme::Magnitude(1e-9),
    Extreme::Magnitude(1e15),
    Extreme::Gap(52.0),
    Extreme::Gap(75.0),
];

/// One KV head with two query heads.
fn layer(extreme: Extreme) -> TraceLayer {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut normal = || -> f32 { StandardNormal.sample(&mut rng) };
    let mut keys = Array3::from_shape_fn((1, TOKENS, 2), |_| 0.5 * normal());
    let mut values = Array3::from_shape_fn((1, TOKENS, DIM), |(_, _, j)| {
        normal() + if j == 0 { 0.7 } else { 0.0 }
    });
    match extreme {
        Extreme::Magnitude(magnitude) => values *= magnitude,
        Extreme::Gap(gap) => {
            keys.slice_mut(s![0, ..;4, ..]).mapv_inplace(|logit| logit + gap);
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

/// Number of violations of the worse query head in `steps` steps, and mean sample size.
fn run(backend: &dyn Backend, mode: &str, layer: &TraceLayer, steps: usize) -> (usize, f64) {
    let shape = layer.shape();
    let options = Options { scale: Some(1.0), fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend.start(&pipeline(mode), 0, shape, &options).unwrap();
    attention.append(layer.keys.view(), layer.values.view()).unwrap();
    // All steps have the same query, but each draws another sample.
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

/// Checks the number of violations, and returns the mean sample size.
fn check(backend: &dyn Backend, extreme: Extreme, mode: &str, steps: usize) -> f64 {
    let (violated, sampled) = run(backend, mode, &layer(extreme), steps);
    let cell = format!("{}, {extreme:?}, {mode}: {violated} of {steps}", backend.name());
    println!("{cell}, {sampled:.0} sampled");
    assert!(binomial::p_value(violated, steps, DELTA) >= 1e-6, "{cell}");
    sampled
}

#[test]
fn promises_are_kept_at_any_magnitude() {
    for extreme in EXTREMES {
        for mode in ["default", "strict", "rigorous"] {
            let expected = check(&Reference, extreme, mode, STEPS);
            let sampled = check(&Cpu::default(), extreme, mode, STEPS);
            let close = (sampled / expected - 1.0).abs() < 0.01;
            assert!(close, "{extreme:?}, {mode}: {sampled} sampled");
        }
        // A device may draw larger samples, up to all tokens.
        let Some(emulator) = common::emulator() else { continue };
        let expected = run(&Reference, "default", &layer(extreme), EMULATED_STEPS).1;
        let sampled = check(&Gpu::new(emulator), extreme, "default", EMULATED_STEPS);
        assert!(sampled / expected > 0.99, "{extreme:?}: {sampled} sampled, {expected} expected");
    }
}
