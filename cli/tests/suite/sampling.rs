//! Options of sampling, stops and grammars of `vattention generate`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::world::{World, expect_code, list, number, recall};

/// Returns a world with a model whose texts do not end by themselves.
fn endless() -> World {
    let world = World::new();
    world.copy_model(&recall(), "endless", json!({"eos_token_id": null}));
    world
}

fn args_for(model: &str, options: &[&str]) -> Vec<String> {
    let line = "generate --pipeline dense.toml --tokens 12 --json out.json --model";
    let words = line.split(' ').chain([model, "--prompt", "The grass is green. The sky is"]);
    words.chain(options.iter().copied()).map(String::from).collect()
}

fn args(options: &[&str]) -> Vec<String> {
    args_for("endless", options)
}

/// Runs `generate`, and returns the answer on standard output and the JSON.
#[track_caller]
fn generate(world: &World, options: &[&str]) -> (String, Value) {
    let output = world.run(&args(options));
    expect_code(&output, 0);
    let mut answer = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answer.pop(), Some('\n'));
    let report = world.json("out.json");
    assert_eq!(report["answer"], *answer, "the streamed answer is the answer of the report");
    (answer, report)
}

#[test]
fn wrong_values_are_refused_by_option() {
    let world = endless();
    world.write("broken.json", "{");
    world.write("wrong.json", r#"{"type": "integr"}"#);
    world.write("wrong.lark", "start: (");
    world.write("empty.lark", "\n");
    for (option, value, expected) in [
        ("--temperature", "-1", "--temperature: -1; expected a number of at least 0"),
        ("--temperature", "NaN", "--temperature: NaN; expected a number of at least 0"),
        ("--temperature", "hot", "--temperature <T>"),
        ("--top-k", "-1", "invalid value '-1' for '--top-k <N>'"),
        ("--top-p", "0", "--top-p: 0; expected a number above 0, and at most 1"),
        ("--top-p", "1.5", "--top-p: 1.5; expected a number above 0, and at most 1"),
        ("--min-p", "1", "--min-p: 1; expected a number of at least 0, and below 1"),
        ("--repetition-penalty", "0", "--repetition-penalty: 0; expected a number above 0"),
        ("--presence-penalty", "-2.5", "--presence-penalty: -2.5; expected a number between"),
        ("--frequency-penalty", "3", "--frequency-penalty: 3; expected a number between -2 and 2"),
        ("--logit-bias", "5", "'--logit-bias <TOKEN=BIAS>': expected TOKEN=BIAS"),
        ("--logit-bias", "a=1", "'--logit-bias <TOKEN=BIAS>': expected TOKEN=BIAS"),
        ("--logit-bias", "5=101", "--logit-bias: 101; expected a bias between -100 and 100"),
        ("--logit-bias", "2626=1", "--logit-bias: 2626; expected a token less than the model's"),
        ("--seed", "-1", "--seed <N>"),
        ("--stop", "", "--stop: an empty text; expected at least one character"),
        ("--stop-token", "2626", "--stop-token: 2626; expected a token less than the model's"),
        ("--json-schema", "none.json", "--json-schema none.json: No such file"),
        ("--json-schema", "broken.json", "--json-schema broken.json: EOF while parsing"),
        ("--grammar", "empty.lark", "--grammar empty.lark: empty; expected a text"),
        ("--grammar", "wrong.lark", "--grammar: the model has no token that ends a text"),
    ] {
        world.refuse(&args(&[option, value]), expected);
    }
    world.copy_model(&recall(), "ends", json!({}));
    for (option, file, expected) in [
        ("--json-schema", "wrong.json", "--json-schema: "),
        ("--grammar", "wrong.lark", "--grammar: "),
    ] {
        world.refuse(&args_for("ends", &[option, file]), expected);
    }
    world.write("right.json", r#"{"type": "integer"}"#);
    world.write("right.lark", "start: \"a\"\n");
    for [option, file] in [["--json-schema", "right.json"], ["--grammar", "right.lark"]] {
        let ignoring = args_for("ends", &[option, file, "--ignore-eos"]);
        world.refuse(&ignoring, "--ignore-eos: true; expected false");
    }
    let both = ["--grammar", "wrong.lark", "--json-schema", "wrong.json"];
    world.refuse(&args(&both), "cannot be used with");
    let line = "generate --model endless --pipeline dense.toml --prompt grass --logprobs 1";
    world.refuse(line, "--json <FILE>");
}

#[test]
fn a_stop_string_ends_the_answer() {
    let world = endless();
    let draw = |options: &[&str]| {
        generate(&world, &[&["--temperature", "50", "--seed", "5"], options].concat())
    };
    let (whole, report) = draw(&[]);
    assert_eq!((&report["stop"], &report["tokens"]["answer"]), (&json!("length"), &json!(12)));
    // The stop string begins inside a word, and ends inside the next.
    let space = whole.match_indices(' ').nth(1).unwrap().0;
    let stop = &whole[space - 1..space + 2];
    let end = whole.find(stop).unwrap();
    let (answer, report) = draw(&["--stop", "never", "--stop", stop]);
    assert_eq!((answer.as_str(), &report["stop"]), (&whole[..end], &json!("stop")));
    let output = world.run(&args(&["--temperature", "50", "--seed", "5", "--stop", stop]));
    let said = expect_code(&output, 0);
    assert!(said.contains("of answer (a --stop or --stop-token)"), "{said}");
    let (answer, report) = draw(&["--stop", "never"]);
    assert_eq!((answer, &report["stop"]), (whole, &json!("length")));
}

#[test]
fn a_stop_token_ends_the_answer() {
    let world = endless();
    let (whole, report) = generate(&world, &["--logprobs", "0"]);
    let scores = list(&report, "logprobs").clone();
    let token = &scores[3]["token"];
    let first = scores.iter().position(|score| score["token"] == *token).unwrap();
    let (answer, report) = generate(&world, &["--stop-token", &token.to_string()]);
    assert_eq!((&report["stop"], &report["tokens"]["answer"]), (&json!("stop"), &json!(first)));
    assert!(whole.starts_with(&answer) && answer.len() < whole.len(), "{answer}");
}

#[test]
fn equal_seeds_give_equal_answers() {
    let world = endless();
    let draw = |seed: &str| generate(&world, &["--temperature", "50", "--seed", seed]).0;
    assert_eq!(draw("5"), draw("5"));
    let answers: BTreeSet<String> = (0..4).map(|seed| draw(&seed.to_string())).collect();
    assert_eq!(answers.len(), 4);
    let greedy = generate(&world, &[]).0;
    assert!(!answers.contains(&greedy));
    for narrow in [["--top-k", "1"], ["--top-p", "1e-9"], ["--min-p", "0.999999"]] {
        let options = [&narrow[..], &["--temperature", "50", "--seed", "5"]].concat();
        assert_eq!(generate(&world, &options).0, greedy, "{narrow:?}");
    }
}

#[test]
fn biases_and_penalties_change_the_answer() {
    let world = endless();
    let words = |options: &[&str]| -> Vec<String> {
        generate(&world, options).0.split(' ').map(String::from).collect()
    };
    assert_eq!(words(&["--logit-bias", "9=100"]), vec!["special"; 12]);
    let penalised = words(&["--logit-bias", "9=100", "--repetition-penalty", "1e6"]);
    assert_eq!(penalised.iter().filter(|word| *word == "special").count(), 1, "{penalised:?}");
    let distinct: BTreeSet<String> = words(&["--repetition-penalty", "1e6"]).into_iter().collect();
    assert!(distinct.len() >= 11, "{distinct:?}");
}

#[test]
fn log_probabilities_of_the_tokens_are_reported() {
    let world = endless();
    let (answer, report) = generate(&world, &["--logprobs", "3"]);
    let scores = list(&report, "logprobs");
    let texts: String = scores.iter().map(|score| score["text"].as_str().unwrap()).collect();
    assert!(texts.contains(&answer), "{texts:?} has special tokens besides {answer:?}");
    for score in scores {
        let top = list(score, "top");
        assert_eq!((top.len(), &top[0]["token"]), (3, &score["token"]), "the likeliest token");
        let logprobs: Vec<f64> = top.iter().map(|other| number(&other["logprob"])).collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{logprobs:?}");
    }
    assert!(generate(&world, &[]).1.get("logprobs").is_none());
}

#[test]
fn answers_by_dense_attention_have_the_same_seed() {
    let world = endless();
    let options = ["--temperature", "1.5", "--seed", "3", "--stop", "never", "--steps", "s.json"];
    let (_, report) = generate(&world, &options);
    assert_eq!(report["beside"], json!({"compared": 12, "same": 12}));
}

/// The model has random weights, and a vocabulary of bytes.
#[test]
fn answers_follow_a_schema_or_a_grammar() {
    let world = World::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/chat.gguf");
    let line = format!("generate --model {model} --pipeline dense.toml --prompt x --quiet");
    let run = |options: &str| {
        let output = world.run(&format!("{line} {options} --temperature 1"));
        expect_code(&output, 0);
        String::from_utf8(output.stdout).unwrap().trim_end_matches('\n').to_owned()
    };
    let schema = json!({
        "type": "object",
        "properties": {"grass": {"enum": ["green", "grün"]}, "legs": {"enum": [2, 4]}},
        "required": ["grass", "legs"],
        "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": false},
    });
    world.write("schema.json", schema.to_string());
    world.write("sum.lark", "start: \"sum \" /[0-9]{1,3}/ \"€\"\n");
    for seed in 0..3 {
        let answer = run(&format!("--json-schema schema.json --seed {seed}"));
        let value: Value = serde_json::from_str(&answer).expect(&answer);
        assert!(value["grass"] == "green" || value["grass"] == "grün", "{answer}");
        assert!(value["legs"] == 2 || value["legs"] == 4, "{answer}");
        let answer = run(&format!("--grammar sum.lark --seed {seed}"));
        let digits = answer.strip_prefix("sum ").unwrap().strip_suffix('€').unwrap();
        assert!(digits.parse::<u32>().unwrap() < 1000, "{answer}");
    }
}
