//! Text to tokens and back, with the tokenizer of `models/recall`.

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

/// What is said of a tokenizer that was changed.
fn refusal(change: impl FnOnce(&mut String)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut text = fs::read_to_string(recall().join("tokenizer.json")).unwrap();
    change(&mut text);
    fs::write(&path, text).unwrap();
    let said = Tokenizer::open(folder.path(), &config()).unwrap_err().to_string();
    assert!(said.starts_with(&path.display().to_string()), "{said}");
    said
}

#[test]
fn a_text_comes_back() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let first = tokenizer.first("The grass is green.").unwrap();
    let next = tokenizer.next("The grass is green.").unwrap();
    assert_eq!(first.len(), 6, "five words and <bos>");
    assert_eq!(first[1..], next);
    assert_eq!(tokenizer.decode(&first).unwrap(), "The grass is green .");
    let mut stream = tokenizer.stream();
    let parts: Vec<String> =
        first.iter().filter_map(|&token| stream.push(token).unwrap()).collect();
    assert_eq!(parts.concat(), "The grass is green .");
}

#[test]
fn tokens_are_of_the_classes_that_the_tokenizer_says() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let tokens = tokenizer.first("The grass is green.").unwrap();
    let mut expected = vec![TokenClass::Other; 6];
    (expected[0], expected[5]) = (TokenClass::Special, TokenClass::Punctuation);
    let classes = tokenizer.classes().unwrap();
    assert_eq!(classes.of(&tokens), expected);
    assert_eq!(classes.of(&[u32::MAX]), [TokenClass::Other]);
}

#[test]
fn all_of_a_long_text_is_tokens() {
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

/// A tokenizer of another file.
fn changed(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let mut json: Value =
        serde_json::from_str(&fs::read_to_string(recall().join("tokenizer.json")).unwrap())
            .unwrap();
    change(&mut json);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::open(folder.path(), &config()).unwrap()
}

/// Post-processors that put tokens around a text.
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
fn tokens_that_end_a_text_do_not_end_a_context() {
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
fn a_text_that_begins_with_bos_has_it_once() {
    let tokenizer = Tokenizer::open(&recall(), &config()).unwrap();
    let expected = tokenizer.first("The grass is green.").unwrap();
    assert_eq!(tokenizer.first("<bos>The grass is green.").unwrap(), expected);
    assert_eq!(tokenizer.first("<bos>").unwrap(), [1]);
    let twice = tokenizer.first("<bos><bos>green").unwrap();
    assert_eq!(twice[..2], [1, 1], "the text says so");
}

/// A character whose bytes are several tokens.
#[test]
fn a_stream_ends_as_the_whole_text_does() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/tests/golden/chat.gguf");
    let tokenizer = Tokenizer::open(&model, &Config::open(&model).unwrap()).unwrap();
    let tokens = tokenizer.next("a\u{10348}").unwrap();
    assert!(tokens.len() > 3);
    for count in 0..=tokens.len() {
        let mut stream = tokenizer.stream();
        let pushed = tokens[..count].iter().filter_map(|&token| stream.push(token).unwrap());
        let mut text: String = pushed.collect();
        text.extend(stream.finish().unwrap());
        assert_eq!(text, tokenizer.decode(&tokens[..count]).unwrap());
        assert_eq!(text.contains('\u{FFFD}'), (2..tokens.len()).contains(&count), "{text:?}");
        assert_eq!(stream.finish().unwrap(), None);
    }
}

#[test]
fn tokens_beyond_the_model_are_refused_where_a_text_has_them() {
    let tokenizer = changed(|json| json["model"]["vocab"]["your"] = json!(2626));
    tokenizer.first("The grass is green.").unwrap();
    let said = tokenizer.next("your grass").unwrap_err().to_string();
    let expected = "tokenizer.json: the text has token 2626 (\"your\"); expected tokens less than \
                    the model's `vocab_size` = 2626";
    assert!(said.ends_with(expected), "{said}");
    tokenizer.classes().unwrap();
}

#[test]
fn what_is_no_tokenizer_is_refused() {
    assert!(refusal(|text| text.truncate(1000)).contains("EOF"));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    let said = refusal(|text| *text = pointer.into());
    assert!(said.contains("tokenizer.json: a pointer of Git LFS"), "{said}");
    let gone = tempfile::tempdir().unwrap();
    let said = Tokenizer::open(gone.path(), &config()).unwrap_err().to_string();
    assert!(said.contains("tokenizer.json: No such file"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(recall().join("tokenizer.json")).unwrap();
    fs::write(folder.path().join("tokenizer.json"), format!("\u{FEFF}{text}")).unwrap();
    Tokenizer::open(folder.path(), &config()).unwrap();
}
