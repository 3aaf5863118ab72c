//! Tests of multimodal checkpoints, of which the language model is read.

use std::collections::HashMap;
use std::path::Path;

use crate::common::{case, copy};
use candle_core::{Device, Tensor, safetensors};
use serde_json::{Value, json};
use vattention_llm::{Config, LayerWindow, Model, PrefillOptions, Scaling, weight_bytes};

/// Names of a language model's tensors in a multimodal checkpoint, and name of a vision tensor.
type Layout<'a> = (&'a dyn Fn(&str) -> String, &'a str);

/// Renames the tensors of a language model `model.layers…` and `lm_head…`, and adds a tensor of a
/// vision tower.
fn nest(dir: &Path, names: impl Fn(&str) -> String, vision: &str) {
    let path = dir.join("model.safetensors");
    let tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    let mut nested: HashMap<String, Tensor> =
        tensors.into_iter().map(|(name, tensor)| (names(&name), tensor)).collect();
    nested.insert(vision.into(), Tensor::zeros(7, candle_core::DType::F32, &Device::Cpu).unwrap());
    safetensors::save(&nested, path).unwrap();
}

/// Writes a configuration whose keys are in `text_config`.
fn write_config(dir: &Path, architecture: &str, text: &Value) {
    let config = json!({"architectures": [architecture], "text_config": text, "vision_config": {}});
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn read_config(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap()
}

/// Old and new names of the tensors, with tied and untied weights of the logits.
#[test]
fn language_models_are_read_under_every_name() {
    for (name, architecture) in [
        ("gemma3", "Gemma3ForConditionalGeneration"),
        ("mistral", "Mistral3ForConditionalGeneration"),
        ("ministral3", "Mistral3ForConditionalGeneration"),
        ("llama4", "Llama4ForConditionalGeneration"),
    ] {
        let alone = Model::open(&case(name)).unwrap();
        let tokens: Vec<u32> = (1..60).collect();
        let expected = alone.prefill(&tokens, PrefillOptions::default()).unwrap().logits;
        let outer = |name: &str| format!("language_model.{name}");
        let inner = |name: &str| match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.into(),
        };
        let outer: Layout<'_> = (&outer, "vision_tower.norm.weight");
        let inner: Layout<'_> = (&inner, "model.vision_tower.norm.weight");
        for (rename, vision) in [outer, inner] {
            let dir = copy(name);
            nest(dir.path(), rename, vision);
            write_config(dir.path(), architecture, &read_config(dir.path()));
            let model = Model::open(dir.path()).unwrap();
            let found = model.prefill(&tokens, PrefillOptions::default()).unwrap().logits;
            assert!(found == expected, "{name}: {vision}");
            let bytes = [dir.path(), &case(name)].map(|path| weight_bytes(path).unwrap());
            assert_eq!(bytes[0], bytes[1], "{name}: the vision tower is not read");
        }
    }
}

/// Errors have the names of the directory.
#[test]
fn missing_tensors_are_named_as_in_the_directory() {
    let dir = copy("gemma3");
    let lost = "model.layers.1.mlp.up_proj.weight";
    let rename = |name: &str| match name {
        _ if name == lost => "language_model.lost".into(),
        _ => format!("language_model.{name}"),
    };
    nest(dir.path(), rename, "vision_tower.norm.weight");
    let message = Model::open(dir.path()).unwrap_err().to_string();
    let expected = format!("no tensor `language_model.{lost}`; expected one of shape [48, 32]");
    assert!(message.ends_with(&expected), "{message}");
}

/// Keys of the published Gemma 3 of 4 billion weights, whose file lacks those with defaults.
#[test]
fn published_files_of_gemma_3_lack_keys_with_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let text = json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    });
    write_config(dir.path(), "Gemma3ForConditionalGeneration", &text);
    let mut file = read_config(dir.path());
    file["eos_token_id"] = json!([1, 106]);
    std::fs::write(dir.path().join("config.json"), file.to_string()).unwrap();
    let config = Config::open(dir.path()).unwrap();
    let shape = config.shape;
    assert_eq!((shape.query_heads, shape.kv_heads, shape.head_dim), (8, 4, 256));
    assert_eq!((config.vocab_size, config.context, config.tied), (262_208, 131_072, true));
    assert_eq!(config.ends, [1, 106]);
    assert_eq!(config.block.scale, Some(1.0 / 16.0));
    let window = LayerWindow { size: 1024, aligned: false };
    assert_eq!([4, 5, 6].map(|layer| config.window(layer)), [Some(window), None, Some(window)]);
    let ropes: Vec<_> = config.ropes.iter().map(|rope| (rope.theta, &rope.scaling)).collect();
    assert_eq!(ropes, [(1e6, &Scaling::Linear { factor: 8.0 }), (1e4, &Scaling::None)]);
}
