//! Tests of errors of checkpoints and inputs, which name the fault and its position.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::common::{case, copy, dense};
use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};
use vattention_backends::Cpu;
use vattention_core::{Attention, Backend, Error, Options, PipelineConfig, Shape, Storage};
use vattention_llm::{Model, Prompt, Session};

/// Changes keys of a JSON file; null removes a key.
fn edit(dir: &Path, file: &str, changes: Value) {
    let path = dir.join(file);
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value.is_null() {
            json.as_object_mut().unwrap().remove(key);
        } else {
            json[key] = value.clone();
        }
    }
    fs::write(path, json.to_string()).unwrap();
}

/// Changes the tensors of a file.
fn edit_tensors(dir: &Path, file: &str, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
    let path = dir.join(file);
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut tensors);
    safetensors::save(&tensors, path).unwrap();
}

/// Error for a directory, without its path.
fn refusal(dir: &Path) -> String {
    let message = Model::open(dir).unwrap_err().to_string();
    let parent = format!("{}/", dir.display());
    assert!(message.starts_with(&parent) || message.starts_with(&dir.display().to_string()));
    message.replace(&parent, "")
}

#[track_caller]
fn assert_tensors_refused(
    name: &str,
    change: impl FnOnce(&mut HashMap<String, Tensor>),
    expected: &str,
) {
    let copy = copy(name);
    edit_tensors(copy.path(), "model.safetensors", change);
    assert_eq!(refusal(copy.path()), format!("model.safetensors: {expected}"));
}

const NORM: &str = "model.layers.1.input_layernorm.weight";
const MATRIX: &str = "model.layers.1.mlp.up_proj.weight";

#[test]
fn invalid_configs_are_refused() {
    let rows = include_str!("../golden/configs-refused.txt").lines().skip(1);
    for row in rows {
        let [name, changes, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let copy = copy(name);
        edit(copy.path(), "config.json", serde_json::from_str(changes).unwrap());
        assert_eq!(refusal(copy.path()), format!("config.json: {expected}"));
    }
}

#[test]
fn wrong_tensors_are_refused() {
    let shape = "no tensor `model.layers.1.input_layernorm.weight`; expected one of shape [64]";
    assert_tensors_refused("qwen3", |tensors| drop(tensors.remove(NORM)), shape);
    let replace = |name: &'static str, tensor: Tensor| {
        move |tensors: &mut HashMap<String, Tensor>| {
            tensors.insert(name.into(), tensor);
        }
    };
    let zeros = |size: usize, dtype| Tensor::zeros(size, dtype, &Device::Cpu).unwrap();
    let wrong = format!("tensor `{NORM}` has shape [63]; expected [64]");
    assert_tensors_refused("qwen3", replace(NORM, zeros(63, DType::F32)), &wrong);
    let integers = format!("tensor `{NORM}` is U8; expected F32, F16 or BF16");
    assert_tensors_refused("qwen3", replace(NORM, zeros(64, DType::U8)), &integers);
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let mut numbers = vec![1.0; 64];
            numbers[17] = bad;
            let tensor = Tensor::new(numbers, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let expected =
                format!("tensor `{NORM}`: number 17 is {shown}; expected finite numbers");
            assert_tensors_refused("qwen3", replace(NORM, tensor), &expected);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let change = move |tensors: &mut HashMap<String, Tensor>| {
            let mut numbers = vec![1.0; tensors[MATRIX].elem_count()];
            numbers[100] = f32::NAN;
            let tensor = Tensor::from_vec(numbers, tensors[MATRIX].shape(), &Device::Cpu);
            tensors.insert(MATRIX.into(), tensor.unwrap().to_dtype(dtype).unwrap());
        };
        let expected = format!("tensor `{MATRIX}`: number 100 is NaN; expected finite numbers");
        assert_tensors_refused("qwen3", change, &expected);
    }
    let extra = replace("model.layers.1.self_attn.sinks", zeros(4, DType::F32));
    let expected =
        "tensor `model.layers.1.self_attn.sinks` has no place in the model of config.json";
    assert_tensors_refused("qwen3", extra, expected);
}

#[test]
fn wrong_sinks_and_experts_are_refused() {
    const SINKS: &str = "model.layers.1.self_attn.sinks";
    const EXPERTS: &str = "model.layers.1.mlp.experts.gate_up_proj";
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let nan = Tensor::new(vec![0.0, 1.0, f32::NAN, 2.0], &Device::Cpu).unwrap();
    for (name, tensor, expected) in [
        (SINKS, Some(zeros(&[3])), format!("tensor `{SINKS}` has shape [3]; expected [4]")),
        (SINKS, Some(zeros(&[4, 1])), format!("tensor `{SINKS}` has shape [4, 1]; expected [4]")),
        (SINKS, Some(nan), format!("tensor `{SINKS}`: number 2 is NaN; expected finite numbers")),
        (SINKS, None, format!("no tensor `{SINKS}`; expected one of shape [4]")),
        (
            EXPERTS,
            Some(zeros(&[3, 64, 32])),
            format!("tensor `{EXPERTS}` has shape [3, 64, 32]; expected [3, 32, 64]"),
        ),
    ] {
        let change = move |tensors: &mut HashMap<String, Tensor>| match tensor {
            Some(tensor) => drop(tensors.insert(name.into(), tensor)),
            None => drop(tensors.remove(name)),
        };
        assert_tensors_refused("gpt-oss", change, &expected);
    }
}

#[test]
fn tensors_of_rotary_frequencies_are_ignored() {
    let copy = copy("llama3");
    edit_tensors(copy.path(), "model.safetensors", |tensors| {
        let zeros = Tensor::zeros((128, 64), DType::F32, &Device::Cpu).unwrap();
        tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), zeros);
    });
    Model::open(copy.path()).unwrap();
}

#[test]
fn missing_or_incomplete_files_are_refused() {
    let dir = copy("qwen3");
    let path = dir.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = bytes.len();
    fs::write(&path, &bytes[..length - 1]).unwrap();
    let expected = format!(
        "model.safetensors: not a whole safetensors file: its tensors end at byte {length}, \
         it at {}",
        length - 1
    );
    assert_eq!(refusal(dir.path()), expected);
    for cut in [0, 7, 8, 100] {
        fs::write(&path, &bytes[..cut]).unwrap();
        let message = refusal(dir.path());
        assert!(
            message.starts_with("model.safetensors: not a whole safetensors file"),
            "{message}"
        );
    }
    fs::remove_file(&path).unwrap();
    let message = refusal(dir.path());
    assert!(
        message.ends_with(
            "expected model.safetensors or model.safetensors.index.json in this directory"
        ),
        "{message}"
    );
    fs::write(dir.path().join("config.json"), "{").unwrap();
    assert!(refusal(dir.path()).starts_with("config.json: EOF"));
    fs::remove_file(dir.path().join("config.json")).unwrap();
    let folder = dir.path().display();
    let none = format!(
        "{folder}: no config.json; expected a folder with config.json, tokenizer.json and \
         safetensors, or a GGUF file"
    );
    assert_eq!(refusal(dir.path()), none);
    fs::write(dir.path().join("b.gguf"), "").unwrap();
    let one = format!("{folder}: no config.json; name the folder's GGUF file itself: b.gguf");
    assert_eq!(refusal(dir.path()), one);
    fs::write(dir.path().join("a.GGUF"), "").unwrap();
    let two =
        format!("{folder}: no config.json; name one of the folder's 2 GGUF files, such as a.GGUF");
    assert_eq!(refusal(dir.path()), two);
    fs::copy(case("qwen3").join("config.json"), dir.path().join("config.json")).unwrap();
    let message = refusal(dir.path());
    assert!(
        message.contains("neither model.safetensors nor model.safetensors.index.json; name one")
    );
}

/// Covers each kind of file in a repository that was cloned without `git lfs`.
#[test]
fn pointers_of_git_lfs_are_refused() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    for (name, file) in [
        ("qwen3", "config.json"),
        ("qwen3", "model.safetensors"),
        ("llama-sharded", "model.safetensors.index.json"),
        ("llama-sharded", "model-00002-of-00003.safetensors"),
    ] {
        let dir = copy(name);
        fs::write(dir.path().join(file), pointer).unwrap();
        let message = refusal(dir.path());
        let expected = format!("{file}: a pointer of Git LFS in the place of the file; expected");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn a_config_may_begin_with_a_byte_order_mark() {
    let dir = copy("qwen3");
    let path = dir.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("\u{FEFF}{text}")).unwrap();
    Model::open(dir.path()).unwrap();
    fs::write(&path, text.replace("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": NaN")).unwrap();
    let message = refusal(dir.path());
    assert!(
        message.contains("`rms_norm_eps` is NaN, which is not JSON; expected a finite"),
        "{message}"
    );
}

#[test]
fn shards_that_do_not_match_the_index_are_refused() {
    const SECOND: &str = "model-00002-of-00003.safetensors";
    let dir = copy("llama-sharded");
    fs::remove_file(dir.path().join(SECOND)).unwrap();
    assert!(refusal(dir.path()).starts_with(&format!("{SECOND}: No such file")));
    let dir = copy("llama-sharded");
    let index = "model.safetensors.index.json";
    let text = fs::read_to_string(dir.path().join(index)).unwrap();
    fs::write(dir.path().join(index), text.replace(SECOND, "../other.safetensors")).unwrap();
    let expected = format!(
        "{index}: `weight_map` names \"../other.safetensors\"; expected a file of this directory"
    );
    assert_eq!(refusal(dir.path()), expected);
    fs::write(dir.path().join(index), text).unwrap();
    let mut gone = String::new();
    edit_tensors(dir.path(), SECOND, |tensors| {
        gone = tensors.keys().min().unwrap().clone();
        tensors.remove(&gone);
    });
    let expected = format!("{SECOND}: no tensor `{gone}`, which {index} says is here");
    assert_eq!(refusal(dir.path()), expected);
}

fn start<'m>(model: &'m Model, options: &Options) -> Session<'m> {
    Session::new(model, &Cpu::default(), &dense(), options).unwrap()
}

#[test]
fn invalid_tokens_are_refused() {
    let dir = copy("llama3");
    edit(dir.path(), "config.json", json!({"max_position_embeddings": 10}));
    let model = Model::open(dir.path()).unwrap();
    let mut session = start(&model, &Options::default());
    let none = session.prefill(&[]).unwrap_err().to_string();
    assert_eq!(none, "tokens: there are none; expected at least 1");
    let foreign = session.prefill(&[1, 128]).unwrap_err().to_string();
    assert_eq!(foreign, "tokens: 128 at [1]; expected less than 128");
    let long = "context: the sequence would have 11 tokens; expected at most \
                `max_position_embeddings` = 10";
    assert_eq!(session.prefill(&[1; 11]).unwrap_err().to_string(), long);
    let never = |_, _: &Session<'_>| -> ControlFlow<()> { panic!("a token") };
    let whole = session.generate(Prompt::whole(&[1; 5]), 6, never).unwrap_err();
    assert_eq!(whole.to_string(), long);
    let parts = Prompt { dense: &[1; 5], sparse: &[1, 200] };
    let foreign = session.generate(parts, 1, never).unwrap_err().to_string();
    assert_eq!(foreign, "tokens: 200 at [1]; expected less than 128");
    assert!(session.is_empty());
    session.prefill(&[1; 9]).unwrap();
    session.step(1).unwrap();
    assert_eq!(session.step(1).unwrap_err().to_string(), long);
    let again = session.prefill(&[1]).unwrap_err().to_string();
    let expected = "prefill: the sequence has 10 tokens already; expected none, or `step` for more";
    assert_eq!(again, expected);
}

#[test]
fn windows_are_those_of_transformers() {
    let full = json!(["full_attention", "full_attention"]);
    let some = json!(["full_attention", "sliding_attention"]);
    let window = json!({"sliding_window": 16, "use_sliding_window": true});
    let with = |key: &str, value: Value| {
        let mut changes = window.clone();
        changes[key] = value;
        changes
    };
    for (name, changes, slides) in [
        ("mistral", json!({"sliding_window": 16}), [true, true]),
        ("mistral", json!({"sliding_window": 2048}), [false, false]),
        ("qwen2", window.clone(), [true, true]),
        ("qwen2", with("use_sliding_window", json!(false)), [false, false]),
        ("qwen2", with("max_window_layers", json!(2)), [false, false]),
        ("qwen2", with("max_window_layers", json!(1)), [false, true]),
        ("qwen2", with("max_window_layers", Value::Null), [false, false]),
        ("qwen2", with("layer_types", full.clone()), [false, false]),
        ("qwen2", with("layer_types", some), [false, true]),
        ("qwen3", with("layer_types", full), [false, false]),
        ("qwen3", with("max_window_layers", json!(1)), [false, true]),
        ("qwen3-moe", with("max_window_layers", json!(2)), [true, true]),
    ] {
        let dir = copy(name);
        let mut whole = json!({"layer_types": null, "max_window_layers": 0});
        for (key, value) in changes.as_object().unwrap() {
            whole[key] = value.clone();
        }
        edit(dir.path(), "config.json", whole);
        let config = Model::open(dir.path()).unwrap().config().clone();
        let expected = slides.map(|slides| slides.then_some(16));
        let found = [0, 1].map(|layer| config.window(layer).map(|window| window.size));
        assert_eq!(found, expected, "{name}: {changes}");
        assert_eq!(config.context, 2048);
    }
}

#[test]
fn pipelines_with_layers_beyond_the_model_are_refused() {
    let model = Model::open(&case("qwen3")).unwrap();
    let pipeline = PipelineConfig { dense_layers: vec![77.into()], ..PipelineConfig::default() };
    let started = Session::new(&model, &Cpu::default(), &Arc::new(pipeline), &Options::default());
    let message = started.err().unwrap().to_string();
    let expected =
        "pipeline: dense_layers[0]: layer 77, which the model does not have; expected 0 to 1";
    assert_eq!(message, expected);
}

/// Backend that cannot run layer 1.
struct FailingBackend;

impl Backend for FailingBackend {
    fn name(&self) -> &'static str {
        "picky"
    }

    fn summary(&self) -> &'static str {
        "cannot run layer 1"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>, Error> {
        if layer == 1 {
            return Err(Error::Backend { backend: "picky".into(), reason: "no".into() });
        }
        Cpu::default().start(pipeline, layer, shape, options)
    }
}

#[test]
fn errors_of_backends_name_the_layer() {
    let model = Model::open(&case("qwen2")).unwrap();
    let failed = Session::new(&model, &FailingBackend, &dense(), &Options::default());
    assert_eq!(failed.err().unwrap().to_string(), "attention of layer 1: backend picky: no");
}

/// The second layer has a value that f16 cannot store; by then the first layer has the tokens.
#[test]
fn failures_between_layers_end_the_sequence() {
    let dir = copy("llama-sharded");
    let name = "model.layers.1.self_attn.v_proj.bias";
    let shards = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let shards = shards.filter_map(|file| file.into_string().ok());
    for shard in shards.filter(|file| file.starts_with("model-")) {
        edit_tensors(dir.path(), &shard, |tensors| {
            if let Some(bias) = tensors.get_mut(name) {
                *bias = (bias.ones_like().unwrap() * 1e5).unwrap();
            }
        });
    }
    let model = Model::open(dir.path()).unwrap();
    let options = Options { storage: Storage::F16, ..Options::default() };
    let mut session = start(&model, &options);
    let failed = session.prefill(&[1, 2, 3]).unwrap_err().to_string();
    assert!(failed.starts_with("attention of layer 1: values[0, 0, 0] is"), "{failed}");
    let lost = "an earlier call has failed between two layers: the sequence cannot continue";
    assert_eq!(session.prefill(&[1]).unwrap_err().to_string(), lost);
    assert_eq!(session.step(1).unwrap_err().to_string(), lost);
    assert_eq!(session.fork(None).err().unwrap().to_string(), lost);
}
