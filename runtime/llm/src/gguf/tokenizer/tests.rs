#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;
use serde_json::Value as Json;

use super::{ends, tokenizer};
use crate::{Config, Tokenizer};

type Metadata = HashMap<String, Value>;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf-tokenizer")
}

fn json(name: &str) -> Json {
    serde_json::from_str(&fs::read_to_string(golden().join(format!("{name}.json"))).unwrap())
        .unwrap()
}

/// Converts a value to the type that GGUF files have: scores are F32, token types I32.
fn value(key: &str, json: &Json) -> Value {
    match json {
        Json::Bool(flag) => Value::Bool(*flag),
        Json::String(text) => Value::String(text.clone()),
        Json::Array(values) => Value::Array(values.iter().map(|item| value(key, item)).collect()),
        Json::Number(number) if key == "scores" => Value::F32(number.as_f64().unwrap() as f32),
        Json::Number(number) if key == "token_type" => {
            Value::I32(number.as_i64().unwrap().try_into().unwrap())
        }
        Json::Number(number) => Value::U32(number.as_u64().unwrap().try_into().unwrap()),
        other => panic!("{other}"),
    }
}

/// Metadata of a case; byte-level tokenizers share their vocabulary.
fn metadata(case: &Json) -> Metadata {
    let own = &case["metadata"];
    let shared = if own["model"] == "gpt2" {
        json("byte-level")
    } else {
        Json::Object([].into_iter().collect())
    };
    let keys = [&shared, own].into_iter().flat_map(|keys| keys.as_object().unwrap());
    keys.map(|(key, json)| (format!("tokenizer.ggml.{key}"), value(key, json))).collect()
}

fn ids(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).unwrap()
}

/// Configuration of a model with more tokens than the vocabularies of the cases.
fn config() -> Config {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall");
    Config::open(&model).unwrap()
}

fn compare(name: &str) {
    let texts: Vec<String> = serde_json::from_value(json("texts")).unwrap();
    let case = json(name);
    let tokenizer = tokenizer(&metadata(&case)).unwrap();
    let places: Vec<usize> = serde_json::from_value(case["texts"].clone()).unwrap();
    assert!(places.len() > 20, "{name}");
    let streaming = Tokenizer::from_parts(&golden(), tokenizer.clone(), &config()).unwrap();
    for (place, text) in places.iter().map(|&place| &texts[place]).enumerate() {
        let expected = ids(&case["tokens"][place]);
        let encoded = tokenizer.encode_fast(text.as_str(), false).unwrap();
        assert_eq!(encoded.get_ids(), expected, "{name}: {text:?}");
        let decoded = tokenizer.decode(&expected, true).unwrap();
        let original = case["decoded"][place.to_string()].as_str();
        assert_eq!(decoded, original.unwrap_or(text), "{name}");
        let mut stream = streaming.stream();
        let parts = expected.iter().map(|&token| stream.push(token).unwrap());
        let streamed: String = parts.collect();
        assert_eq!(streamed + &stream.finish(), decoded, "{name}");
        if let Some(first) = case["first"].get(place) {
            let encoded = tokenizer.encode_fast(text.as_str(), true).unwrap();
            assert_eq!(encoded.get_ids(), ids(first), "{name}: {text:?}");
        }
    }
}

#[test]
fn byte_level_families_encode_as_their_originals() {
    let names = "gpt-2 smollm command-r llama-bpe smaug-bpe qwen2 qwen35 laguna ufakzeka \
                 seed-coder bailingmoe exaone-moe minicpm5 jais-2 gpt-4o tiny_aya youtu bloom \
                 viking superbpe spark2_5 tekken deepseek-llm deepseek-coder deepseek-v3 default";
    for name in names.split(' ') {
        compare(name);
    }
}

#[test]
fn sentence_piece_encodes_as_its_original() {
    compare("llama");
    compare("llama-no-prefix");
}

#[test]
fn whole_words_that_are_tokens_are_not_merged_in_some_families() {
    let whole = |name: &str| {
        let tokenizer = tokenizer(&metadata(&json(name))).unwrap();
        tokenizer.encode_fast(" wholeword", false).unwrap().len() == 1
    };
    assert!(whole("llama-bpe") && whole("tekken"));
    assert!(!whole("smaug-bpe") && !whole("qwen2"));
}

#[test]
fn end_tokens_are_found_by_key_and_by_text() {
    let mut metadata = metadata(&json("qwen2"));
    let Value::Array(tokens) = &metadata["tokenizer.ggml.tokens"] else { panic!() };
    let place = |text: &str| {
        let found = |token: &Value| matches!(token, Value::String(other) if other == text);
        tokens.iter().position(found).unwrap() as u32
    };
    let mut expected = vec![place("</s>"), place("<|end|>")];
    expected.sort_unstable();
    assert_eq!(ends(&metadata, 10_000).unwrap(), expected);
    metadata.insert("tokenizer.ggml.eot_token_id".into(), Value::I64(0));
    expected.insert(0, 0);
    assert_eq!(ends(&metadata, 10_000).unwrap(), expected);
    metadata.insert("tokenizer.ggml.eom_token_id".into(), Value::U32(100_000));
    let message = ends(&metadata, 10_000).unwrap_err();
    assert!(
        message.starts_with("`tokenizer.ggml.eom_token_id` is 100000 of type u32; expected"),
        "{message}"
    );
}

fn changed(name: &str, change: impl FnOnce(&mut Metadata)) -> Result<(), String> {
    let mut metadata = metadata(&json(name));
    change(&mut metadata);
    tokenizer(&metadata).map(drop)
}

/// Error for metadata in which one key was changed.
fn refusal(name: &str, key: &str, change: impl FnOnce(&mut Value)) -> String {
    let key = format!("tokenizer.ggml.{key}");
    let message = changed(name, |metadata| change(metadata.get_mut(&key).unwrap())).unwrap_err();
    assert!(message.starts_with(&format!("`{key}`")) && message.contains("expected"), "{message}");
    message
}

fn items(value: &mut Value) -> &mut Vec<Value> {
    match value {
        Value::Array(items) => items,
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

#[test]
fn missing_keys_are_named() {
    for (name, keys) in [
        ("llama-bpe", ["model", "pre", "tokens", "merges", "bos_token_id"].as_slice()),
        ("llama", ["model", "tokens", "scores", "bos_token_id"].as_slice()),
        ("deepseek-coder", ["eos_token_id"].as_slice()),
    ] {
        for key in keys {
            let key = format!("tokenizer.ggml.{key}");
            let message = changed(name, |metadata| drop(metadata.remove(&key))).unwrap_err();
            assert!(message.starts_with(&format!("`{key}` is missing; expected ")), "{message}");
        }
    }
}

#[test]
fn keys_of_wrong_types_are_refused() {
    for (name, keys) in [
        (
            "smaug-bpe",
            [
                "model",
                "pre",
                "tokens",
                "merges",
                "token_type",
                "bos_token_id",
                "eos_token_id",
                "add_bos_token",
                "add_eos_token",
            ]
            .as_slice(),
        ),
        ("llama", ["scores", "token_type", "unknown_token_id"].as_slice()),
    ] {
        for key in keys {
            assert!(
                refusal(name, key, |value| *value = Value::F64(0.5)).contains("0.5 of type f64")
            );
        }
    }
    for key in ["tokens", "merges", "token_type"] {
        let message = refusal("gpt-2", key, |value| items(value)[7] = Value::Bool(true));
        assert!(message.contains("item 7 is true"), "{message}");
    }
    let message = refusal("llama", "scores", |value| items(value)[7] = Value::F32(f32::NAN));
    assert!(message.contains("item 7 is NaN of type f32"), "{message}");
}

#[test]
fn errors_of_unknown_names_list_known_ones() {
    let message = refusal("gpt-2", "model", |value| *value = text("bert"));
    assert!(message.contains("\"bert\"") && message.contains("`gpt2` or `llama`"), "{message}");
    let message = refusal("gpt-2", "pre", |value| *value = text("gpt-5"));
    let expected = "`tokenizer.ggml.pre` is \"gpt-5\"; expected one of 83 pre-tokenizers of \
                    llama.cpp, such as gpt-2, gpt-4o, gpt3-finnish \
                    (docs/notes/pre-tokenizers.md has all)";
    assert_eq!(message, expected);
    let message = refusal("gpt-2", "pre", |value| *value = text("kimi-k2"));
    assert!(message.contains("such as llama-bpe, qwen2, gpt-2, tekken, default"), "{message}");
}

#[test]
fn arrays_that_do_not_fit_each_other_are_refused() {
    for (name, key) in [("gpt-2", "token_type"), ("llama", "token_type"), ("llama", "scores")] {
        let message = refusal(name, key, |value| drop(items(value).pop()));
        assert!(message.contains("as many as `tokenizer.ggml.tokens`"), "{message}");
    }
    assert!(refusal("llama", "tokens", |value| items(value).clear()).contains("is empty"));
    let message = refusal("gpt-2", "token_type", |value| items(value)[3] = Value::I32(7));
    assert!(message.contains("item 3 is 7"), "{message}");
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused() {
    for key in ["bos_token_id", "eos_token_id"] {
        for token in [Value::U32(u32::MAX), Value::I32(-1), Value::U64(u64::MAX)] {
            let message = refusal("smaug-bpe", key, |value| *value = token);
            assert!(message.contains("expected one of the "), "{message}");
        }
    }
}

#[test]
fn invalid_merges_are_refused() {
    for line in ["", " ", "ab", "a ", " b", "a b c", "Ġt  h", "\u{1F600} a", "~ \u{1F600}"] {
        let message = refusal("gpt-2", "merges", |value| items(value)[5] = text(line));
        assert!(message.contains(&format!("item 5 is {line:?}")), "{message}");
    }
    // The two tokens are not a token together, although they are not longer than the longest token.
    let message =
        refusal("gpt-2", "merges", |value| items(value)[5] = text("</tool_call> <|end|>"));
    assert!(message.contains("whose concatenation is a token"), "{message}");
    let message = refusal("gpt-2", "merges", |value| {
        let first = items(value)[0].clone();
        items(value)[5] = first;
    });
    assert!(message.contains("a merge that no earlier item has"), "{message}");
}

#[test]
fn only_unused_tokens_may_repeat_a_text() {
    let message = refusal("gpt-2", "tokens", |value| {
        let first = items(value)[300].clone();
        items(value)[310] = first;
    });
    assert!(message.contains("items 300 and 310 are both"), "{message}");
    let padded = |kind| {
        changed("llama", |metadata| {
            let add = |metadata: &mut Metadata, key: &str, value| {
                items(metadata.get_mut(&format!("tokenizer.ggml.{key}")).unwrap()).push(value);
            };
            for pad in ["<pad>", "<pad>", "", ""] {
                add(metadata, "tokens", text(pad));
                add(metadata, "scores", Value::F32(0.0));
                add(metadata, "token_type", Value::I32(kind));
            }
        })
    };
    padded(5).unwrap();
    padded(4).unwrap_err();
}

#[test]
fn sentence_pieces_must_cover_every_text() {
    let without_byte = |metadata: &mut Metadata| {
        let tokens = items(metadata.get_mut("tokenizer.ggml.tokens").unwrap());
        let byte = |token: &&mut Value| matches!(token, Value::String(text) if text == "<0xE4>");
        *tokens.iter_mut().find(byte).unwrap() = text("no byte");
    };
    changed("llama", without_byte).unwrap();
    let message = changed("llama", |metadata| {
        without_byte(metadata);
        metadata.remove("tokenizer.ggml.unknown_token_id");
        for kind in items(metadata.get_mut("tokenizer.ggml.token_type").unwrap()) {
            if matches!(kind, Value::I32(2)) {
                *kind = Value::I32(1);
            }
        }
    });
    assert!(message.unwrap_err().contains("\"<0xE4>\""));
    let message = refusal("llama", "tokens", |value| items(value)[400] = text(&"x".repeat(5000)));
    assert!(message.contains("item 400") && message.len() < 200, "{message}");
}

#[test]
fn tokens_that_end_a_text_are_special_whatever_their_type() {
    let mut metadata = metadata(&json("gpt-2"));
    metadata.remove("tokenizer.ggml.token_type");
    let tokenizer = tokenizer(&metadata).unwrap();
    let encoded = tokenizer.encode_fast("a<|end|><s>", false).unwrap();
    assert_eq!(tokenizer.decode(encoded.get_ids(), true).unwrap(), "a<s>");
}
