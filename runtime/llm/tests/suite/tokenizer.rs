//! Tests of encoding and decoding with the tokenizer of `models/recall`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vattention_core::TokenClass;
use vattention_llm::{Config, Tokenizer};

fn recall() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

fn config() -> Config {
    Config::open(&recall()).unwrap()
}

/// Error for a tokenizer whose file was changed.
fn refusal(change: impl FnOnce(&mut String)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut text = fs::read_to_string(recall().join("tokenizer.json")).unwrap();
    change(&mut text);
    fs::write(&path, text).unwrap();
    let message = Tokenizer::open(folder.path(), &config()).unwrap_err().to_string();
    assert!(message.starts_with(&path.display().to_string()), "{message}");
    message
}

#[test]
fn decoding_returns_the_text() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let first = tokenizer.first("The grass is green.").unwrap();
    let next = tokenizer.next("The grass is green.").unwrap();
    assert_eq!(first.len(), 6, "five words and <bos>");
    assert_eq!(first[1..], next);
    assert_eq!(tokenizer.decode(&first).unwrap(), "The grass is green .");
    let mut stream = tokenizer.stream();
    let parts: Vec<String> = first.iter().map(|&token| stream.push(token).unwrap()).collect();
    assert_eq!(parts.concat(), "The grass is green .");
}

#[test]
fn classes_follow_the_tokenizer() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let tokens = tokenizer.first("The grass is green.").unwrap();
    let mut expected = vec![TokenClass::Other; 6];
    (expected[0], expected[5]) = (TokenClass::Special, TokenClass::Punctuation);
    let classes = tokenizer.classes().unwrap();
    assert_eq!(classes.classify(&tokens), expected);
    assert_eq!(classes.classify(&[u32::MAX]), [TokenClass::Other]);
}

#[test]
fn long_texts_are_not_truncated() {
    let mut json: Value =
        serde_json::from_str(&fs::read_to_string(recall().join("tokenizer.json")).unwrap())
            .unwrap();
    let truncation = r#"{"direction":"Right","max_length":4,"strategy":"LongestFirst","stride":0}"#;
    json["truncation"] = serde_json::from_str(truncation).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let tokenizer = Tokenizer::open(folder.path(), &config()).unwrap();
    assert_eq!(tokenizer.next("green green green green green green").unwrap().len(), 6);
}

/// Opens the tokenizer of a changed file.
fn changed(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let mut json: Value =
        serde_json::from_str(&fs::read_to_string(recall().join("tokenizer.json")).unwrap())
            .unwrap();
    change(&mut json);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::open(folder.path(), &config()).unwrap()
}

/// Post-processors that add tokens around a text.
fn around() -> [Value; 3] {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let token = |id: &str, number: u32| json!({"id": id, "ids": [number], "tokens": [id]});
    let template = json!({
        "type": "TemplateProcessing",
        "single": [special("<bos>"), text("A"), special("<eos>")],
        "pair": [special("<bos>"), text("A"), special("<eos>"), text("B"), special("<eos>")],
        "special_tokens": {"<bos>": token("<bos>", 1), "<eos>": token("<eos>", 2)},
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false,
        "use_regex": true});
    let sequence = json!({"type": "Sequence", "processors": [bytes, template]});
    let bert = json!({"type": "BertProcessing", "sep": ["<eos>", 2], "cls": ["<bos>", 1]});
    [template, sequence, bert]
}

#[test]
fn end_tokens_are_not_added() {
    for processor in around() {
        let tokenizer = changed(|json| json["post_processor"] = processor.clone());
        let text = "The grass is green.";
        let (first, next) = (tokenizer.first(text).unwrap(), tokenizer.next(text).unwrap());
        assert_eq!(first, [&[1], next.as_slice()].concat(), "{processor}");
        assert_eq!(tokenizer.first("").unwrap(), [1]);
    }
    let none = changed(|json| json["post_processor"] = Value::Null);
    assert_eq!(none.first("green").unwrap(), none.next("green").unwrap());
}

#[test]
fn bos_is_not_repeated() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let expected = tokenizer.first("The grass is green.").unwrap();
    assert_eq!(tokenizer.first("<bos>The grass is green.").unwrap(), expected);
    assert_eq!(tokenizer.first("<bos>").unwrap(), [1]);
    let twice = tokenizer.first("<bos><bos>green").unwrap();
    assert_eq!(twice[..2], [1, 1], "the text says so");
}

/// The character's bytes are several tokens.
#[test]
fn streams_match_decoding_of_the_whole_text() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/golden/chat.gguf");
    let tokenizer = Tokenizer::open(&model, &Config::open(&model).unwrap()).unwrap();
    let tokens = tokenizer.next("a\u{10348}").unwrap();
    assert!(tokens.len() > 3);
    for count in 0..=tokens.len() {
        let mut stream = tokenizer.stream();
        let mut text: String =
            tokens[..count].iter().map(|&token| stream.push(token).unwrap()).collect();
        text += &stream.finish();
        assert_eq!(text, tokenizer.decode(&tokens[..count]).unwrap());
        assert_eq!(text.contains('\u{FFFD}'), (2..tokens.len()).contains(&count), "{text:?}");
        assert_eq!(stream.finish(), "");
    }
}

#[test]
fn tokens_beyond_the_model_are_refused() {
    let tokenizer = changed(|json| json["model"]["vocab"]["your"] = json!(2626));
    tokenizer.first("The grass is green.").unwrap();
    let message = tokenizer.next("your grass").unwrap_err().to_string();
    let expected = "tokenizer.json: the text has token 2626 (\"your\"); expected tokens less than \
                    the model's `vocab_size` = 2626";
    assert!(message.ends_with(expected), "{message}");
    tokenizer.classes().unwrap();
}

#[test]
fn invalid_tokenizers_are_refused() {
    assert!(refusal(|text| text.truncate(1000)).contains("EOF"));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    let message = refusal(|text| *text = pointer.into());
    assert!(message.contains("tokenizer.json: a pointer of Git LFS"), "{message}");
    let gone = tempfile::tempdir().unwrap();
    let message = Tokenizer::open(gone.path(), &config()).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json: No such file"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(recall().join("tokenizer.json")).unwrap();
    fs::write(folder.path().join("tokenizer.json"), format!("\u{FEFF}{text}")).unwrap();
    Tokenizer::open(folder.path(), &config()).unwrap();
}
