//! Functions that several tests share.

pub(crate) mod agreement;
pub(crate) mod devices;
mod files;
pub(crate) mod peer;

use std::path::{Path, PathBuf};

use ndarray::{Array3, ArrayView3};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::StandardNormal;
use rand_chacha::ChaCha8Rng;
use vattention::cuda::Gpu;
use vattention::trace::TraceLayer;
use vattention::{Attention, Backend, Shape, TokenClass, available_backends};
use vattention_cuda_emulator::{Emulator, REQUIRE_EMULATOR};
use vattention_testkit::or_skip;

pub(crate) use files::{configs, root};

/// Shape of the model for which the files of `weights/` were trained.
pub(crate) const MODEL: Shape = Shape { query_heads: 9, kv_heads: 3, head_dim: 64, value_dim: 64 };

/// A layer of that model for which the files of `weights/` have weights.
pub(crate) const MODEL_LAYER: usize = 9;

/// Standard normal numbers, generated from a seed.
pub(crate) fn normal(dim: (usize, usize, usize), seed: u64) -> Array3<f32> {
    Array3::random_using(dim, StandardNormal, &mut ChaCha8Rng::seed_from_u64(seed))
}

/// Generator of numbers between −1 and 1.
pub(crate) fn number_generator(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Appends rows with token classes to a sequence. Special tokens and punctuation are rare, so that
/// some pages have neither.
pub(crate) fn append(
    attention: &mut dyn Attention,
    keys: ArrayView3<'_, f32>,
    values: ArrayView3<'_, f32>,
) -> vattention::Result<()> {
    let class = |token: usize| match (token % 61, token % 41) {
        (0, _) => TokenClass::Special,
        (_, 3) => TokenClass::Punctuation,
        _ => TokenClass::Other,
    };
    let (first, new) = (attention.len(), keys.dim().1);
    let classes: Vec<TokenClass> = (first..first + new).map(class).collect();
    attention.append_classed(keys, values, &classes)
}

/// Returns true if a pipeline file uses a file of `weights/`, and so runs on the model's heads
/// only.
pub(crate) fn is_trained(config: &Path) -> bool {
    std::fs::read_to_string(config).unwrap().contains("../weights/")
}

/// Backends that can run on this machine, and the CUDA backend on an emulated GPU.
pub(crate) fn backends() -> Vec<Box<dyn Backend>> {
    let mut backends = available_backends();
    backends.extend(emulator().map(|emulator| Box::new(Gpu::new(emulator)) as _));
    backends
}

/// An emulated GPU, if there is a C++ compiler.
pub(crate) fn emulator() -> Option<Emulator> {
    or_skip(Emulator::new(), REQUIRE_EMULATOR)
}

/// A layer of a trace in which all tokens are visible to all queries.
pub(crate) fn trace_layer(
    queries: Array3<f32>,
    keys: Array3<f32>,
    values: Array3<f32>,
) -> TraceLayer {
    let (visible, prompt, prompt_tokens, classes) = (None, None, None, None);
    let (soft_cap, sink_logits) = (None, None);
    TraceLayer {
        queries,
        keys,
        values,
        visible,
        prompt,
        prompt_tokens,
        classes,
        soft_cap,
        sink_logits,
    }
}

/// Path of a golden file.
pub(crate) fn golden(path: &str) -> PathBuf {
    root("tests/golden").join(path)
}
