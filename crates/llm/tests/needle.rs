//! The model of `models/recall` finds a needle, by dense attention and by sparse attention that reads
//! the needle; and does not by one that cannot.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{Options, PipelineConfig};
use vattention_llm::{Model, Prompt, Session};
use {vattention_estimators as _, vattention_selectors as _};

/// Sentences of noise around the needle: some 2000 tokens.
const SENTENCES: usize = 400;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(root(path)).unwrap()).unwrap()
}

/// One token a word or mark.
struct Words {
    numbers: HashMap<String, u32>,
}

impl Words {
    fn new() -> Self {
        let tokenizer = json("models/recall/tokenizer.json");
        let numbers = tokenizer["model"]["vocab"].as_object().unwrap().iter();
        let number = |(word, number): (&String, &Value)| {
            (word.clone(), u32::try_from(number.as_u64().unwrap()).unwrap())
        };
        Self { numbers: numbers.map(number).collect() }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let spaced: String = text
            .chars()
            .flat_map(|c| {
                let mark = c.is_ascii_punctuation() && c != '_';
                [Some(' ').filter(|_| mark), Some(c), Some(' ').filter(|_| mark)]
            })
            .flatten()
            .collect();
        spaced.split_whitespace().map(|word| self.numbers[word]).collect()
    }
}

/// A text with a needle after a share of its sentences, the question, and the value that is asked for.
fn needle(words: &Words, depth: f64, key: usize) -> (Vec<u32>, Vec<u32>, u32) {
    let vocabulary = json("models/recall/vocabulary.json");
    let word = |class: &str, i: usize| vocabulary["classes"][class][i].as_str().unwrap().to_owned();
    let (key, value) = (word("keys", key), word("numbers", 7 * key % 256));
    let niah = &vocabulary["templates"]["niah"];
    let fill = |template: &Value| {
        let text = template.as_str().unwrap().replace("{kinds}", "numbers");
        let text = text.replace("{kind}", "number").replace("{query}", &key);
        text.replace("{key}", &key).replace("{value}", &value)
    };
    let noise = vocabulary["noise"].as_array().unwrap();
    let mut context = vec![words.numbers["<bos>"]];
    context.extend(words.encode(&fill(&niah["one"]["introduction"])));
    for i in 0..SENTENCES {
        if i == (depth * SENTENCES as f64) as usize {
            context.extend(words.encode(&fill(&niah["needle"])));
        }
        context.extend(words.encode(noise[i % noise.len()].as_str().unwrap()));
    }
    let question = format!("{} {}", fill(&niah["one"]["question"]), fill(&niah["one"]["answer"]));
    (context, words.encode(&question), words.numbers[&value])
}

/// How many of some needles at all depths are found, and the mean share of tokens that was read.
fn found(model: &Model, pipeline: &str) -> (usize, f64) {
    let pipeline: Arc<PipelineConfig> = Loader::default().parse("needle.toml", pipeline).unwrap();
    let words = Words::new();
    let (mut right, mut density) = (0, 0.0);
    for i in 0..5 {
        let (context, question, value) =
            needle(&words, f64::from(i) / 5.0 + 0.1, 31 + 97 * i as usize);
        let mut session =
            Session::new(model, &Cpu::default(), &pipeline, &Options::default()).unwrap();
        let prompt = Prompt { dense: &context, sparse: &question };
        let answer = session.generate(prompt, 1, |_, _| ControlFlow::Continue(())).unwrap();
        right += usize::from(answer.tokens == [value]);
        density += session.density().unwrap() / 5.0;
    }
    (right, density)
}

const EDGES: &str =
    "[[selectors]]\ntype = \"sink\"\nsize = 16\n[[selectors]]\ntype = \"window\"\nsize = 64\n";

#[test]
fn a_needle_is_found_by_those_who_read_it() {
    let model = Model::open(&root("models/recall")).unwrap();
    assert_eq!(found(&model, "name = \"dense\"\n"), (5, 1.0));

    let (right, density) =
        found(&model, &format!("{EDGES}[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.02\n"));
    assert_eq!(right, 5);
    assert!(density < 0.15, "{density}");

    let (right, density) = found(&model, EDGES);
    assert_eq!(right, 0, "the needle is not at the edges");
    assert!(density < 0.1, "{density}");
}
