//! One decode step of one KV head with four query heads: `cargo bench --bench attention`.
//!
//! Each step reads the same rows, so rows that fit into a cache come from there. Short contexts
//! thus show the fixed cost of a step and the speed of the kernel. `vattention bench` measures
//! reads from memory.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use divan::{Bencher, black_box};
use ndarray::Array3;
use vattention::config::Loader;
use vattention::{Attention, FallBack, Options, PipelineConfig, Shape, Storage, backend};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 1, head_dim: 128, value_dim: 128 };
const TOKENS: [usize; 4] = [1, 64, 512, 32_768];

fn main() {
    divan::main();
}

fn number(i: usize) -> f32 {
    ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn start(toml: &str, tokens: usize, storage: Storage) -> Box<dyn Attention> {
    let pipeline: Arc<PipelineConfig> = Loader { set: Vec::new() }.parse("bench", toml).unwrap();
    let options =
        Options { storage, threads: Some(1), fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend("cpu").unwrap().start(&pipeline, 0, SHAPE, &options).unwrap();
    let rows = |shift: usize| {
        Array3::from_shape_fn((1, tokens, 128), |(_, i, j)| number(i * 128 + j + shift) + 0.2)
    };
    attention.append(rows(0).view(), rows(7).view()).unwrap();
    attention
}

fn attend(bencher: Bencher<'_, '_>, mut attention: Box<dyn Attention>) {
    let queries = Array3::from_shape_fn((4, 1, 128), |(i, _, j)| number(i * 128 + j + 3));
    bencher.bench_local(|| black_box(attention.attend(black_box(queries.view()), None).unwrap()));
}

#[divan::bench(args = TOKENS)]
fn dense_bf16(bencher: Bencher<'_, '_>, tokens: usize) {
    attend(bencher, start("", tokens, Storage::Bf16));
}

#[divan::bench(args = TOKENS)]
fn dense_f16(bencher: Bencher<'_, '_>, tokens: usize) {
    attend(bencher, start("", tokens, Storage::F16));
}

#[divan::bench(args = TOKENS)]
fn dense_f32(bencher: Bencher<'_, '_>, tokens: usize) {
    attend(bencher, start("", tokens, Storage::F32));
}

/// A random tenth of the tokens.
#[divan::bench(args = [32_768])]
fn sample_bf16(bencher: Bencher<'_, '_>, tokens: usize) {
    attend(
        bencher,
        start("[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 0.1\n", tokens, Storage::Bf16),
    );
}

/// A sample as large as the promise needs, with its checks.
#[divan::bench(args = [32_768])]
fn ratio_bf16(bencher: Bencher<'_, '_>, tokens: usize) {
    let toml = "[estimator]\ntype = \"ratio\"\nepsilon = 0.1\ndelta = 0.1\n";
    attend(bencher, start(toml, tokens, Storage::Bf16));
}
