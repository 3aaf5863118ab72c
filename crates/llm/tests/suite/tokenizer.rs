//! Text to tokens and back, with the tokenizer of `models/recall`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
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

#[test]
fn what_is_no_tokenizer_or_anothers_is_refused() {
    assert!(refusal(|text| text.truncate(1000)).contains("EOF"));
    let another = |text: &mut String| *text = text.replace("\"your\": 2625", "\"your\": 2626");
    let expected = r#"token 2626 ("your"); expected less than the model's `vocab_size` = 2626"#;
    assert!(refusal(another).ends_with(expected), "{}", refusal(another));
    let gone = tempfile::tempdir().unwrap();
    let said = Tokenizer::open(gone.path(), &config()).unwrap_err().to_string();
    assert!(said.contains("tokenizer.json: No such file"), "{said}");
}
