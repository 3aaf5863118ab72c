//! Tests of the rotation of rows before they are stored in 8 bits.

use std::sync::Arc;

use candle_core::{Device, Tensor, safetensors};
use tempfile::TempDir;
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{FallBack, Options, PipelineConfig, Storage};
use vattention_llm::{Model, Session, rotates_rows};

use crate::common::{copy, dense, promised, snapkv, sparse};

/// Selector that reads everything, and that depends on single channels.
fn channels() -> Arc<PipelineConfig> {
    let text = "[[selectors]]\ntype = 'sparq'\nsize = 10000\nchannels = 8\nscore = 'group'";
    Loader::default().parse("channels.toml", text).unwrap()
}

/// Returns a copy of a model with a large bias of one channel of the keys.
fn biased_model() -> TempDir {
    let copy = copy("qwen2");
    let path = copy.path().join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    let biases: Vec<String> =
        tensors.keys().filter(|name| name.ends_with("k_proj.bias")).cloned().collect();
    assert!(!biases.is_empty());
    for name in biases {
        let bias = &tensors[&name];
        let mut numbers: Vec<f32> =
            bias.to_dtype(candle_core::DType::F32).unwrap().to_vec1().unwrap();
        numbers[0] += 10.0;
        let changed = Tensor::from_vec(numbers, bias.shape(), &Device::Cpu).unwrap();
        tensors.insert(name, changed.to_dtype(bias.dtype()).unwrap());
    }
    safetensors::save(&tensors, path).unwrap();
    copy
}

/// Logits after a prompt and some steps.
fn decode(model: &Model, pipeline: &Arc<PipelineConfig>, storage: Storage) -> Vec<f32> {
    let options = Options { storage, fall_back: FallBack::Never, ..Options::default() };
    let mut session = Session::new(model, &Cpu::default(), pipeline, &options).unwrap();
    let prompt: Vec<u32> = (0..150).map(|i| (i * 37 + 11) % 100).collect();
    session.prefill(&prompt).unwrap();
    (0..4).flat_map(|token| session.step(token * 9 + 2).unwrap()).collect()
}

fn distance(x: &[f32], y: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
    x.iter().zip(y).map(square).sum::<f64>().sqrt()
}

#[test]
fn rows_in_8_bits_are_rotated_unless_a_selector_depends_on_channels() {
    for pipeline in [dense(), sparse(), promised(), snapkv()] {
        assert!(rotates_rows(&pipeline, Storage::Q8), "{}", pipeline.name);
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            assert!(!rotates_rows(&pipeline, storage), "{}, {storage}", pipeline.name);
        }
    }
    assert!(!rotates_rows(&channels(), Storage::Q8));
    let layers = "[[selectors]]\ntype = 'sink'\nsize = 4\n[[layers]]\nat = [1]\n\
                  [[layers.selectors.append]]\ntype = 'quest'\npage = 16\nsize = 32";
    let layers = Loader::default().parse("layers.toml", layers).unwrap();
    assert!(!rotates_rows(&layers, Storage::Q8), "a part depends on channels");
}

/// Both pipelines read everything. Only the rows of the first are rotated.
#[test]
fn a_rotation_keeps_an_outlier_channel_from_making_others_coarse() {
    let folder = biased_model();
    let model = Model::open(folder.path()).unwrap();
    let exact = decode(&model, &dense(), Storage::F32);
    let error = |pipeline| distance(&decode(&model, pipeline, Storage::Q8), &exact);
    let (rotated, unrotated) = (error(&dense()), error(&channels()));
    assert!(rotated < 0.75 * unrotated, "{rotated}, unrotated {unrotated}");
    let near = distance(&decode(&model, &channels(), Storage::F32), &exact);
    assert!(near < 0.01 * unrotated, "{near}, in 8 bits {unrotated}");
}
