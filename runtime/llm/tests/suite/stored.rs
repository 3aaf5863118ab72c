//! Tests that matrices stored in bf16 give the same model as the same numbers in f32.

use std::fs;
use std::sync::Arc;

use crate::common::{CASES, copy, dense, sparse};
use candle_core::{DType, Device, Tensor, safetensors};
use tempfile::TempDir;
use vattention_backends::Cpu;
use vattention_core::{Options, PipelineConfig};
use vattention_llm::{LayerPrompt, Model, PrefillOptions, Session, weight_bytes};

/// Copies a case with its numbers rounded to bf16, and stored as `dtype`.
fn rounded(name: &str, dtype: DType) -> TempDir {
    let copy = copy(name);
    let store = |tensor: Tensor| tensor.to_dtype(DType::BF16).unwrap().to_dtype(dtype).unwrap();
    for path in fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let file = path.file_name().unwrap().to_str().unwrap();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            let tensors = safetensors::load(&path, &Device::Cpu).unwrap().into_iter();
            let tensors = tensors.map(|(name, tensor)| (name, store(tensor))).collect();
            safetensors::save(&tensors, path).unwrap();
        }
    }
    copy
}

fn bits<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> Vec<u32> {
    numbers.into_iter().map(|number| number.to_bits()).collect()
}

/// Results of a prefill, in blocks of `block` tokens.
fn prefill(model: &Model, block: usize) -> Vec<Vec<u32>> {
    let prompt: Vec<u32> = (0..100).map(|i| (i * 37 + i / 11) % 126).collect();
    let prefilled = model
        .prefill(&prompt, PrefillOptions { block, observed: 100, ..PrefillOptions::default() })
        .unwrap();
    let of_layer = |layer: &LayerPrompt| {
        bits([&layer.keys, &layer.values, &layer.queries].into_iter().flatten())
    };
    let layers = prefilled.layers.iter().map(of_layer);
    layers.chain([bits(&prefilled.logits)]).collect()
}

/// Logits after each of some tokens.
fn steps(model: &Model, pipeline: &Arc<PipelineConfig>) -> Vec<Vec<u32>> {
    let mut session = Session::new(model, &Cpu::default(), pipeline, &Options::default()).unwrap();
    let prompt: Vec<u32> = (0..300).map(|i| (i * 37 + i / 11) % 126).collect();
    session.prefill(&prompt).unwrap();
    [5, 9, 2, 125].into_iter().map(|token| bits(&session.step(token).unwrap())).collect()
}

#[test]
fn the_same_weights_give_the_same_bits() {
    // MXFP4 is neither.
    for name in CASES.into_iter().filter(|name| *name != "gpt-oss-mxfp4") {
        let (narrow, wide) = (rounded(name, DType::BF16), rounded(name, DType::F32));
        let bytes = [&narrow, &wide].map(|dir| weight_bytes(dir.path()).unwrap());
        assert!(bytes[0] < bytes[1] * 11 / 20, "{name}: {bytes:?}");
        let [narrow, wide] = [narrow, wide].map(|dir| Model::open(dir.path()).unwrap());
        for block in [1, 7, 512] {
            assert!(prefill(&narrow, block) == prefill(&wide, block), "{name}: blocks of {block}");
        }
        for pipeline in [dense(), sparse()] {
            assert!(steps(&narrow, &pipeline) == steps(&wide, &pipeline), "{name}: steps");
        }
    }
}
