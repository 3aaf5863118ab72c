//! Tests of GGUF files: they equal the Hugging Face directory of the same model, and invalid ones
//! are refused.
//!
//! `tools/make_tiny_gguf.py` makes the small files from the checkpoints in the directory above.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::common::{CASES, case, dense};
use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use proptest::prelude::*;
use serde_json::Value as Json;
use tempfile::TempDir;
use vattention_backends::Cpu;
use vattention_core::Options;
use vattention_llm::{
    ChatTemplate, Config, Model, Session, Tokenizer, most_likely_token, weight_bytes,
};

fn gguf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/gguf/{name}.gguf"))
}

/// Checkpoints that GGUF can describe; it has no keys for models in which some layers have experts,
/// unless these are every n-th one, for layers without rotary embedding, and for the windows of
/// Qwen 2 and SmolLM3.
fn cases() -> impl Iterator<Item = &'static str> {
    let others = [
        "qwen3-moe-mixed",
        "qwen2-window",
        "smollm3-window",
        "gemma3-multimodal",
        "mistral3-multimodal",
        "llama4-unnormalised",
    ];
    CASES.into_iter().filter(move |name| !others.contains(name))
}

fn session(model: &Model) -> Session<'_> {
    Session::new(model, &Cpu::default(), &dense(), &Options::default()).unwrap()
}

/// Computes the logits after a prompt and after some steps.
pub(crate) fn logits(model: &Model) -> Vec<Vec<f32>> {
    let vocabulary = model.config().vocab_size as u32;
    let token = |i: u32| (i * 7 + 3) % vocabulary;
    let mut session = session(model);
    let prompt: Vec<u32> = (0..60).map(token).collect();
    let mut all = vec![session.prefill(&prompt).unwrap()];
    all.extend((60..68).map(|i| session.step(token(i)).unwrap()));
    all
}

pub(crate) fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn logits_match_the_directory() {
    for name in cases() {
        let (ours, directory) = (Model::open(&gguf(name)), Model::open(&case(name)));
        let (ours, directory) = (ours.unwrap(), directory.unwrap());
        let distance = distance(&logits(&ours), &logits(&directory));
        assert!(distance < 2e-5, "{name}: {distance:e}");
    }
}

#[test]
fn configs_match_the_directory() {
    for name in cases() {
        let (ours, directory) =
            (Config::open(&gguf(name)).unwrap(), Config::open(&case(name)).unwrap());
        assert_eq!(ours.shape, directory.shape, "{name}");
        assert_eq!((ours.layers, ours.vocab_size), (directory.layers, directory.vocab_size));
        assert_eq!((ours.tied, ours.biases), (directory.tied, directory.biases), "{name}");
        assert_eq!(ours.context, directory.context, "{name}");
        assert_eq!(ours.ends, directory.ends, "{name}");
        assert_eq!(ours.block, directory.block, "{name}");
        assert_eq!(ours.layer_forms, directory.layer_forms, "{name}");
        assert_eq!(ours.experts, directory.experts, "{name}");
        // The factors of rotary frequencies are extra tensors, and vectors are in f32.
        let more = weight_bytes(&gguf(name)).unwrap() - weight_bytes(&case(name)).unwrap();
        let factors = match name {
            "llama3" | "llama4" => 8,
            "phi3" => 2 * 6,
            _ => 0,
        };
        let biases = directory.experts.filter(|experts| experts.biased).map_or(0, |experts| {
            experts.count * (2 * experts.inner + directory.hidden_size) * directory.layers
        });
        assert_eq!(more, 4 * factors + 2 * biases as u64, "{name}");
    }
    let mistral = Config::open(&gguf("mistral")).unwrap();
    assert_eq!(mistral.architecture, "Llama", "llama.cpp calls it so");
}

/// Writes a GGUF file.
pub(crate) fn write<'a>(
    path: &Path,
    metadata: impl IntoIterator<Item = (&'a str, &'a Value)>,
    tensors: &[(String, QTensor)],
) {
    let metadata: Vec<_> = metadata.into_iter().collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// Key-value pairs of the metadata.
pub(crate) fn pairs(metadata: &HashMap<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    metadata.iter().map(|(key, value)| (key.as_str(), value))
}

pub(crate) fn quantised(dtype: GgmlDType) -> (TempDir, PathBuf) {
    write_model(dtype, false)
}

/// Writes a model in one number type except for norms; its rows are whole blocks of every type.
fn write_model(dtype: GgmlDType, biased: bool) -> (TempDir, PathBuf) {
    let (hidden, inner, vocabulary, layers) = (256, 512, 64, 2);
    let tensor = |shape: &[usize], seed: usize| {
        let count = shape.iter().product::<usize>();
        let scale = 1.0 / (hidden as f32).sqrt();
        let number = |i: usize| ((i as f32 + 0.37 * seed as f32) * 12.9898).sin() * scale * 2.0;
        Tensor::from_vec((0..count).map(number).collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
    };
    let mut tensors =
        vec![("token_embd.weight".to_owned(), tensor(&[vocabulary, hidden], 1), dtype)];
    let ones = |size| Tensor::ones(size, candle_core::DType::F32, &Device::Cpu).unwrap();
    tensors.push(("output_norm.weight".into(), ones(hidden), GgmlDType::F32));
    for layer in 0..layers {
        let parts = [
            ("attn_q", [hidden, hidden]),
            ("attn_k", [hidden / 2, hidden]),
            ("attn_v", [hidden / 2, hidden]),
            ("attn_output", [hidden, hidden]),
            ("ffn_gate", [inner, hidden]),
            ("ffn_up", [inner, hidden]),
            ("ffn_down", [hidden, inner]),
        ];
        for (i, (part, shape)) in parts.into_iter().enumerate() {
            let seed = 10 * layer + i + 2;
            tensors.push((format!("blk.{layer}.{part}.weight"), tensor(&shape, seed), dtype));
        }
        for (part, size) in [("attn_q", hidden), ("attn_k", hidden / 2), ("attn_v", hidden / 2)] {
            if biased {
                let bias = tensor(&[size], 10 * layer + size);
                tensors.push((format!("blk.{layer}.{part}.bias"), bias, dtype));
            }
        }
        for norm in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{layer}.{norm}.weight"), ones(hidden), GgmlDType::F32));
        }
    }
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.block_count", Value::U32(layers as u32)),
        ("llama.context_length", Value::U32(256)),
        ("llama.embedding_length", Value::U32(hidden as u32)),
        ("llama.feed_forward_length", Value::U32(inner as u32)),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.vocab_size", Value::U32(vocabulary as u32)),
        ("tokenizer.ggml.eos_token_id", Value::U32(0)),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let tensors: Vec<(String, QTensor)> = tensors
        .into_iter()
        .map(|(name, tensor, dtype)| (name, QTensor::quantize(&tensor, dtype).unwrap()))
        .collect();
    write(&path, metadata.iter().map(|(key, value)| (*key, value)), &tensors);
    (folder, path)
}

/// Writes the same file with every tensor in f32.
fn dequantised(path: &Path) -> PathBuf {
    let mut file = File::open(path).unwrap();
    let content = Content::read(&mut file).unwrap();
    let tensors: Vec<(String, QTensor)> = content
        .tensor_infos
        .keys()
        .map(|name| {
            let tensor = content.tensor(&mut file, name, &Device::Cpu).unwrap();
            let wide = tensor.dequantize(&Device::Cpu).unwrap();
            (name.clone(), QTensor::quantize(&wide, GgmlDType::F32).unwrap())
        })
        .collect();
    let wide = path.with_extension("f32.gguf");
    write(&wide, pairs(&content.metadata), &tensors);
    wide
}

#[test]
fn quantised_weights_match_their_dequantised_numbers() {
    use GgmlDType::{BF16, F16, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    for dtype in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Q6K] {
        let (_folder, path) = quantised(dtype);
        let (ours, wide) = (Model::open(&path).unwrap(), Model::open(&dequantised(&path)).unwrap());
        let (ours, wide) = (logits(&ours), logits(&wide));
        let largest = wide.iter().flatten().fold(0.0_f32, |a, b| a.max(b.abs()));
        let distance = distance(&ours, &wide) / largest;
        assert!(distance < 2e-5, "{dtype:?}: {distance:e}");
    }
}

/// Biases of queries and keys are reordered number by number, since their blocks span several
/// heads.
#[test]
fn biases_may_be_quantised() {
    let (_folder, path) = write_model(GgmlDType::Q8_0, true);
    let (ours, wide) = (Model::open(&path).unwrap(), Model::open(&dequantised(&path)).unwrap());
    assert!(ours.config().biases.inputs);
    let (ours, wide) = (logits(&ours), logits(&wide));
    let largest = wide.iter().flatten().fold(0.0_f32, |a, b| a.max(b.abs()));
    assert!(distance(&ours, &wide) < 2e-5 * largest);
}

#[test]
fn quantised_weights_stay_quantised_in_memory() {
    let bytes = |dtype| weight_bytes(&quantised(dtype).1).unwrap();
    let (wide, norms) = (bytes(GgmlDType::F32), 4 * 5 * 256);
    let bytes_per_weight = |dtype| (bytes(dtype) - norms) as f64 / (wide - norms) as f64 * 4.0;
    assert_eq!(bytes_per_weight(GgmlDType::Q4_0), 18.0 / 32.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q4_1), 20.0 / 32.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q5_0), 22.0 / 32.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q8_0), 34.0 / 32.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q4K), 148.0 / 256.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q5K), 180.0 / 256.0);
    assert_eq!(bytes_per_weight(GgmlDType::Q6K), 210.0 / 256.0);
    assert_eq!(bytes_per_weight(GgmlDType::BF16), 2.0);
    assert_eq!(bytes_per_weight(GgmlDType::F16), 4.0);
}

/// Writes a copy of a file with other metadata.
fn edited(name: &str, change: impl FnOnce(&mut HashMap<String, Value>)) -> (TempDir, PathBuf) {
    let mut file = File::open(gguf(name)).unwrap();
    let mut content = Content::read(&mut file).unwrap();
    change(&mut content.metadata);
    let tensor = |name: &String| content.tensor(&mut file, name, &Device::Cpu).unwrap();
    let names = content.tensor_infos.keys();
    let tensors: Vec<_> = names.cloned().zip(content.tensor_infos.keys().map(tensor)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    write(&path, pairs(&content.metadata), &tensors);
    (folder, path)
}

/// Parses a value from its type and text.
pub(crate) fn parse_value(text: &str) -> Option<Value> {
    let (kind, text) = text.split_once(' ').unwrap_or((text, ""));
    let number = || text.parse::<f64>().unwrap();
    let words = || text.split(' ').map(|word| word.parse::<f64>().unwrap());
    Some(match kind {
        "none" => return None,
        "text" => Value::String(text.into()),
        "bool" => Value::Bool(text == "true"),
        "u8" => Value::U8(number() as u8),
        "u32" => Value::U32(number() as u32),
        "i32" => Value::I32(number() as i32),
        "f32" => Value::F32(number() as f32),
        "f64" => Value::F64(number()),
        "u32s" => Value::Array(words().map(|x| Value::U32(x as u32)).collect()),
        "f32s" => Value::Array(words().map(|x| Value::F32(x as f32)).collect()),
        _ => panic!("{kind}"),
    })
}

#[test]
fn errors_of_metadata_name_the_key() {
    for row in include_str!("../golden/gguf-refused.txt").lines().skip(1) {
        let [key, text, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (_folder, path) = edited("llama3", |metadata| {
            match parse_value(text) {
                Some(value) => metadata.insert(key.into(), value),
                None => metadata.remove(key),
            };
        });
        let message = Model::open(&path).unwrap_err().to_string();
        assert_eq!(message, format!("{}: {expected}", path.display()));
    }
}

#[test]
fn sizes_may_be_written_for_each_layer() {
    let sizes = |sizes: &[u32]| Value::Array(sizes.iter().copied().map(Value::U32).collect());
    let plain = Config::open(&gguf("llama3")).unwrap();
    let (_folder, path) = edited("llama3", |metadata| {
        let heads = plain.shape.query_heads as u32;
        metadata.insert("llama.attention.head_count".into(), sizes(&[heads, heads]));
        let heads = plain.shape.kv_heads as u32;
        metadata.insert("llama.attention.head_count_kv".into(), sizes(&[heads, heads]));
        metadata.insert("llama.feed_forward_length".into(), sizes(&[112, 112]));
    });
    assert_eq!(Config::open(&path).unwrap(), plain);
    let expected = logits(&Model::open(&gguf("llama3")).unwrap());
    assert_eq!(logits(&Model::open(&path).unwrap()), expected, "rows are reordered alike");
}

#[test]
fn unsupported_types_are_named() {
    let (_folder, path) = quantised(GgmlDType::Q2K);
    let message = Model::open(&path).unwrap_err().to_string();
    let expected = "tensor `token_embd.weight` is Q2_K; expected F32, F16, BF16, Q4_0, Q4_1, \
                    Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS or MXFP4";
    assert!(message.ends_with(expected), "{message}");
    for (number, shown) in [(29, "IQ1_M"), (40, "NVFP4"), (1000, "type number 1000")] {
        let place = "blk.1.ffn_up.weight";
        let message = refusal_of_patched(place, 4 + 16, &u32::to_le_bytes(number));
        assert!(
            message.starts_with(&format!("tensor `{place}` is {shown}; expected F32")),
            "{message}"
        );
    }
}

/// Error for a file whose bytes after the end of a name are replaced.
fn refusal_of_patched(name: &str, skip: usize, bytes: &[u8]) -> String {
    let mut file = fs::read(gguf("llama3")).unwrap();
    let found = file.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    let place = found + name.len() + skip;
    file[place..place + bytes.len()].copy_from_slice(bytes);
    refusal(&file)
}

/// Error for a file of these bytes, without its path.
fn refusal(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let message = Model::open(&path).unwrap_err().to_string();
    message.strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned()
}

/// The offset of a matrix follows its number of dimensions, its dimensions and its type.
#[test]
fn tensors_must_lie_apart_and_aligned() {
    let (name, behind) = ("blk.1.ffn_up.weight", 4 + 16 + 4);
    let message = refusal_of_patched(name, behind, &7_u64.to_le_bytes());
    let expected = format!(
        "tensor `{name}` begins 7 bytes after the header; expected a multiple of the alignment, 32"
    );
    assert_eq!(message, expected);
    let message = refusal_of_patched(name, behind, &64_u64.to_le_bytes());
    assert!(
        message.contains(&format!("`{name}` ")) && message.contains(" and tensor `"),
        "{message}"
    );
    assert!(message.ends_with("expected tensors that do not overlap"), "{message}");
}

#[test]
fn duplicate_names_are_refused() {
    let mut file = File::open(gguf("llama3")).unwrap();
    let content = Content::read(&mut file).unwrap();
    let norm = content.tensor(&mut file, "output_norm.weight", &Device::Cpu).unwrap();
    let again = content.tensor(&mut file, "output_norm.weight", &Device::Cpu).unwrap();
    let refusal = |metadata: &[(&str, &Value)], tensors: &[(String, QTensor)]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(&path, metadata.iter().copied(), tensors);
        let message = Model::open(&path).unwrap_err().to_string();
        message.strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned()
    };
    let (one, other) = (Value::U32(1), Value::U32(2));
    let keys = [("a.b", &one), ("c", &one), ("a.b", &other)];
    let expected = "metadata keys 0 and 2 are both \"a.b\"; expected different keys";
    assert_eq!(refusal(&keys, &[]), expected);
    let name = "output_norm.weight".to_owned();
    let expected =
        "tensors 0 and 1 are both named \"output_norm.weight\"; expected different names";
    assert_eq!(refusal(&[], &[(name.clone(), norm), (name, again)]), expected);
}

#[test]
fn other_files_are_refused() {
    let message = refusal(b"PK\x03\x04 and so on");
    assert_eq!(message, "not a GGUF file: it begins with \"PK\\u{3}\\u{4}\"; expected \"GGUF\"");
    assert_eq!(refusal(b""), "not a whole GGUF file: it ends within its header");
    let message = refusal(b"GGUF\0\0\0\x03 and so on");
    assert!(message.contains("(of a big-endian machine); expected version 1, 2 or 3"), "{message}");
    let message = refusal(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    assert!(message.starts_with("a pointer of Git LFS in the place of the file"), "{message}");
}

/// Files are cut at every byte of the header, since each place is another case.
#[test]
fn incomplete_files_are_refused() {
    let whole = fs::read(gguf("llama3")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    for length in (0..4000).chain((4000..whole.len()).step_by(997)) {
        fs::write(&path, &whole[..length]).unwrap();
        let message = Model::open(&path).unwrap_err().to_string();
        assert!(message.starts_with(&path.display().to_string()), "{length}: {message}");
        assert!(Config::open(&path).is_err() || length > 1000, "{length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 400,
        ..ProptestConfig::default()
    })]
    /// A damaged header causes neither a panic nor memory as large as it claims.
    #[test]
    fn damaged_headers_do_no_harm(
        damage in proptest::collection::vec((0_usize..3000, any::<u8>()), 1..6),
    ) {
        let mut bytes = fs::read(gguf("llama3")).unwrap();
        for (place, byte) in damage {
            bytes[place] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.gguf");
        fs::write(&path, &bytes).unwrap();
        if let Ok(model) = Model::open(&path) {
            prop_assert!(model.config().layers <= 4096);
        }
    }
}

/// Reads everything in a file. Damage of the vocabulary or template must cause at most an error.
pub(crate) fn read_all(path: &Path) {
    let Ok(config) = Config::open(path) else { return };
    if let Ok(tokenizer) = Tokenizer::open(path, &config) {
        let _ = tokenizer.first("Hello world").and_then(|tokens| tokenizer.decode(&tokens));
    }
    if let Ok(Some(template)) = ChatTemplate::open(path) {
        let _ = template.render(None, "Hello world", "");
    }
}

/// Returns a file with a vocabulary, merges and a template, which the command's tests use too.
fn with_vocabulary() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/golden/chat.gguf");
    fs::read(path).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 300,
        ..ProptestConfig::default()
    })]
    #[test]
    fn damaged_vocabularies_do_no_harm(
        damage in proptest::collection::vec((24_usize..11_000, any::<u8>()), 1..6),
    ) {
        let mut bytes = with_vocabulary();
        for (place, byte) in damage {
            bytes[place] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.gguf");
        fs::write(&path, &bytes).unwrap();
        read_all(&path);
    }
}

/// Path of the real model, which `tools/get_smollm2.py` downloads.
fn smollm2() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Compares each token with other programs (`tools/make_smollm2_golden.py`): the most likely token
/// must be theirs unless its lead is within their rounding. Llama.cpp rounds activations to 8 bits
/// in every product, transformers computes in f32.
#[test]
#[ignore = "needs the real model: just real gguf"]
fn the_real_model_matches_other_programs() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/smollm2.json");
    let golden: Json = serde_json::from_str(&fs::read_to_string(golden).unwrap()).unwrap();
    let model = Model::open(&smollm2()).unwrap();
    let mut alike = 0;
    for (name, case) in golden["cases"].as_object().unwrap() {
        let tokens = |value: &Json| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
        for (who, lead) in [("transformers", 0.01), ("llama.cpp", 1.2)] {
            let theirs = tokens(&case[who]["tokens"]);
            assert_eq!(theirs.len(), 50);
            let mut session = session(&model);
            let mut logits = session.prefill(&tokens(&case["prompt_tokens"])).unwrap();
            for (i, &token) in theirs.iter().enumerate() {
                let (found, gap) =
                    (most_likely_token(&logits).unwrap(), case[who]["gaps"][i].as_f64().unwrap());
                assert!(
                    found == token || gap < lead,
                    "{name}, {who}, step {i}: {found}, not {token}"
                );
                alike += usize::from(found == token);
                logits = session.step(token).unwrap();
            }
        }
    }
    assert!(alike >= 285, "{alike} of 300 tokens are alike");
}
