//! Synthetic traces for tests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ndarray::Array3;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use vattention_core::Storage;
use vattention_trace::{TraceInfo, TraceLayer, write_trace};

/// Returns approximately Gaussian numbers, which are sums of twelve uniform ones.
pub(crate) fn noise(size: (usize, usize, usize), seed: u64) -> Array3<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || rng.next_u32() as f32 / u32::MAX as f32;
    Array3::from_shape_simple_fn(size, || (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
}

/// Returns a layer with two KV heads of two query heads each, head dimension 8, 32 queries and 300
/// tokens.
pub(crate) fn layer(seed: u64) -> TraceLayer {
    layer_of(32, 300, seed)
}

/// Returns a layer like [`layer`] with these numbers of queries and tokens.
pub(crate) fn layer_of(queries: usize, tokens: usize, seed: u64) -> TraceLayer {
    TraceLayer {
        queries: noise((4, queries, 8), seed),
        keys: noise((2, tokens, 8), seed + 1),
        values: noise((2, tokens, 8), seed + 2),
        visible: None,
        prompt: None,
        prompt_tokens: None,
        classes: None,
        soft_cap: None,
        sink_logits: None,
    }
}

/// Writes a trace of layers into a folder, and returns its path.
pub(crate) fn trace(
    folder: &tempfile::TempDir,
    name: &str,
    layers: &[(usize, TraceLayer)],
) -> PathBuf {
    let path = folder.path().join(name);
    let layers: BTreeMap<usize, TraceLayer> = layers.iter().cloned().collect();
    write_trace(&path, &TraceInfo::default(), &layers, Storage::F32).unwrap();
    path
}
