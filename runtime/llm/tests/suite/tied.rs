//! Tests of tied weights: files store the embeddings, the weights of the logits, or both.

use std::path::Path;

use crate::common::{case, copy, dense};
use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};
use vattention_backends::Cpu;
use vattention_core::Options;
use vattention_llm::{Model, Session};

const EMBEDDINGS: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

fn logits(model: &Model) -> Vec<f32> {
    let mut session = Session::new(model, &Cpu::default(), &dense(), &Options::default()).unwrap();
    session.prefill(&[1, 2, 3]).unwrap()
}

/// Opens a copy of a checkpoint whose embeddings are replaced: `change` returns the embeddings and
/// the weights of the logits to store.
fn open_with_ends(
    tied: bool,
    change: impl FnOnce(Tensor) -> [Option<Tensor>; 2],
) -> Result<Model, vattention_llm::Error> {
    let copy = copy("llama3");
    let config = copy.path().join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    json["tie_word_embeddings"] = json!(tied);
    std::fs::write(config, json.to_string()).unwrap();
    let path = copy.path().join("model.safetensors");
    let mut tensors = safetensors::load(&path, &Device::Cpu).unwrap();
    let embeddings = tensors.remove(EMBEDDINGS).unwrap();
    for (name, tensor) in [EMBEDDINGS, HEAD].into_iter().zip(change(embeddings)) {
        tensors.extend(tensor.map(|tensor| (name.to_owned(), tensor)));
    }
    safetensors::save(&tensors, path).unwrap();
    Model::open(copy.path())
}

fn original() -> Model {
    let path: &Path = &case("llama3");
    Model::open(path).unwrap()
}

#[test]
fn different_weights_under_both_names_are_not_tied() {
    let another = |embeddings: Tensor| {
        let head = (embeddings.to_dtype(DType::F32).unwrap() * 0.5).unwrap();
        [Some(embeddings), Some(head)]
    };
    let (tied, untied) =
        (open_with_ends(true, another).unwrap(), open_with_ends(false, another).unwrap());
    assert_eq!(logits(&tied), logits(&untied));
    assert_ne!(logits(&tied), logits(&original()));
    assert!(!tied.config().tied);
}

#[test]
fn equal_weights_under_both_names_are_tied_in_any_types() {
    for dtype in [DType::BF16, DType::F32] {
        let model = open_with_ends(true, |embeddings| {
            let head = embeddings.to_dtype(dtype).unwrap();
            [Some(embeddings), Some(head)]
        });
        let model = model.unwrap();
        assert!(model.config().tied);
        assert_eq!(logits(&model), logits(&original()));
    }
}

#[test]
fn weights_of_the_logits_alone_are_the_embeddings() {
    let model = open_with_ends(true, |weights| [None, Some(weights)]).unwrap();
    assert!(model.config().tied);
    assert_eq!(logits(&model), logits(&original()));
    let message = open_with_ends(false, |weights| [None, Some(weights)]).unwrap_err().to_string();
    assert!(message.contains(&format!("no tensor `{EMBEDDINGS}`")), "{message}");
    let message = open_with_ends(true, |_| [None, None]).unwrap_err().to_string();
    assert!(message.contains(&format!("no tensor `{EMBEDDINGS}`")), "{message}");
}
