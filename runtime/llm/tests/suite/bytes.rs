//! Tests of the predicted memory of weights.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::common::{CASES, case, copy};
use candle_core::{DType, Device, Tensor, safetensors};
use vattention_llm::{Config, weight_bytes};

/// Loads the tensors of all files.
fn tensors(dir: &Path) -> HashMap<String, Tensor> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let weights = paths.filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("model") && name.ends_with(".safetensors")
    });
    weights.flat_map(|path| safetensors::load(path, &Device::Cpu).unwrap()).collect()
}

/// Expected memory: 2 bytes for each number of a matrix in bf16, 4 for every other number.
fn expected<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> u64 {
    let bytes = |tensor: &Tensor| {
        let bytes = match tensor.dtype() {
            DType::BF16 if tensor.rank() >= 2 => 2,
            // Blocks and scales of MXFP4.
            DType::U8 => 1,
            _ => 4,
        };
        tensor.elem_count() as u64 * bytes
    };
    tensors.into_iter().map(bytes).sum()
}

#[test]
fn matrices_in_bf16_take_two_bytes_a_number_and_all_else_four() {
    for name in CASES {
        let (found, mut tensors) = (weight_bytes(&case(name)).unwrap(), tensors(&case(name)));
        if name.ends_with("-multimodal") {
            tensors.retain(|tensor, _| tensor.starts_with("language_model."));
        }
        assert_eq!(found, expected(tensors.values()), "{name}");
        let numbers: usize = tensors.values().map(Tensor::elem_count).sum();
        let wide = ["llama-sharded", "mistral", "qwen3", "qwen3-moe-mixed", "olmo2"];
        assert_eq!(found < 4 * numbers as u64, !wide.contains(&name), "{name}");
    }
}

#[test]
fn ignored_tensors_are_not_counted() {
    let name = CASES.into_iter().find(|name| Config::open(&case(name)).unwrap().tied).unwrap();
    let copy = copy(name);
    let mut tensors = tensors(copy.path());
    for tensor in tensors.values_mut() {
        *tensor = tensor.to_dtype(DType::F16).unwrap();
    }
    let numbers: usize = tensors.values().map(Tensor::elem_count).sum();
    let left_out = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let tensor = Tensor::ones((128, 64), DType::F32, &Device::Cpu).unwrap();
    tensors.insert(left_out.into(), tensor);
    safetensors::save(&tensors, copy.path().join("model.safetensors")).unwrap();
    let found = weight_bytes(copy.path()).unwrap();
    assert_eq!(found, 4 * numbers as u64, "f16 becomes f32 in memory");
}

#[test]
fn incomplete_files_are_refused() {
    let copy = copy("qwen3");
    let path = copy.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let message = weight_bytes(copy.path()).unwrap_err().to_string();
    assert!(message.contains("model.safetensors: not a whole safetensors file"), "{message}");
}
