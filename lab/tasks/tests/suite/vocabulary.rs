//! Tests of texts from a vocabulary: they contain only its words, and have the shapes of training.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{SYNTHETIC, count, hash, needles, queried_keys, set, solve, taken, words};
use proptest::prelude::*;
use serde_json::{Value, json};
use vattention_tasks::{Case, Error, Task, Texts};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall/vocabulary.json")
}

fn content() -> Value {
    serde_json::from_str(&fs::read_to_string(file()).unwrap()).unwrap()
}

fn case(task: Task, tokens: usize, seed: u64) -> Case {
    Texts::open(&file()).unwrap().case(task, tokens, seed, &count).unwrap()
}

fn class(name: &str) -> BTreeSet<String> {
    serde_json::from_value(content()["classes"][name].clone()).unwrap()
}

/// Returns every word that the model of this vocabulary knows.
fn known_words() -> BTreeSet<String> {
    let tokenizer = fs::read_to_string(file().with_file_name("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    tokenizer["model"]["vocab"].as_object().unwrap().keys().cloned().collect()
}

const TASKS: [Task; 9] = [
    SYNTHETIC[0],
    SYNTHETIC[1],
    SYNTHETIC[2],
    SYNTHETIC[3],
    SYNTHETIC[4],
    SYNTHETIC[5],
    SYNTHETIC[6],
    SYNTHETIC[7],
    SYNTHETIC[8],
];

fn assert_right(task: Task, case: &Case) {
    let solved = solve(task, case);
    if task == Task::NiahMultivalue {
        assert_eq!(set(&solved), set(&case.answers));
    } else {
        assert_eq!(solved, case.answers, "{task}");
    }
    assert_eq!(case.tokens, case.answers.len() + 1, "the words, and a full stop");
}

#[test]
fn texts_contain_only_the_vocabularys_words() {
    let known = known_words();
    for task in TASKS {
        for seed in 0..20 {
            let case = case(task, 700, seed);
            let text = [case.context, case.question, case.answers.join(" ")].join(" ");
            assert!(words(&text).iter().all(|word| known.contains(*word)), "{task}: {text}");
        }
    }
}

#[test]
fn tasks_have_the_keys_and_kinds_of_training() {
    let (keys, filler) = (class("keys"), class("filler"));
    for (task, keys_found, values_per_key, kind) in [
        (Task::NiahSingle1, 1, 1, "numbers"),
        (Task::NiahSingle2, 1, 1, "numbers"),
        (Task::NiahSingle3, 1, 1, "uuids"),
        (Task::NiahMultikey1, 4, 1, "numbers"),
        (Task::NiahMultikey2, (1000 - 90) / 13, 1, "numbers"),
        (Task::NiahMultikey3, (1000 - 90) / 13, 1, "uuids"),
        (Task::NiahMultivalue, 1, 4, "numbers"),
        (Task::NiahMultiquery, 4, 1, "numbers"),
    ] {
        let (case, values) = (case(task, 1000, 3), class(kind));
        let found = needles(&case.context);
        assert_eq!(found.len(), keys_found * values_per_key, "{task}");
        assert_eq!(set(found.iter().map(|found| found.0)).len(), keys_found, "{task}");
        assert_eq!(
            set(found.iter().map(|found| found.1)).len(),
            keys_found * values_per_key,
            "{task}"
        );
        assert!(
            found.iter().all(|found| keys.contains(found.0) && values.contains(found.1)),
            "{task}"
        );
        assert_eq!(queried_keys(&case).len(), if task == Task::NiahMultiquery { 4 } else { 1 });
        let has_noise = case.context.contains(". The grass is green. The sky is blue. ");
        assert_eq!(has_noise, task == Task::NiahSingle1, "{task}");
        let sentences = case.context.split_inclusive(". ").skip(3);
        let filled =
            sentences.filter(|text| words(text).iter().all(|w| *w == "." || filler.contains(*w)));
        assert_eq!(filled.count() > 0, task != Task::NiahSingle1, "{task}");
    }
}

#[test]
fn texts_read_as_in_training() {
    let one = case(Task::NiahMultikey2, 130, 0);
    let (key, value) = (queried_keys(&one)[0], &one.answers[0]);
    assert!(one.context.starts_with(
        "A special magic number is hidden within the following text. Make sure to memorize it. \
         I will quiz you about the number afterwards. "
    ));
    assert!(
        one.context.contains(&format!(" One of the special magic numbers for {key} is: {value}."))
    );
    assert_eq!(
        one.question,
        format!(
            "\nWhat is the special magic number for {key} mentioned in the provided text? \
             The special magic number for {key} mentioned in the provided text is"
        )
    );
    let vt = case(Task::Vt, 130, 0);
    assert!(vt.context.starts_with("Memorize and track the chain of variable assignment hidden"));
    assert!(vt.question.contains(" in the text above. Answer: According to the chain of"));
    assert!(vt.question.ends_with(", they are:"), "{}", vt.question);
    assert!(vt.question.contains(" 5 variables are assigned the value "));
    assert_eq!(vt.context.matches("Memorize").count(), 1, "no example");
    let variables = class("variables");
    assert!(vt.answers.iter().all(|variable| variables.contains(variable)));
}

#[test]
fn texts_are_stable() {
    let text = |task| case(task, 1000, 7);
    let hashes: Vec<_> = TASKS.iter().map(|t| format!("{t} {:016x}", hash(&text(*t)))).collect();
    assert_eq!(hashes, GOLDEN);
    assert!(TASKS.iter().all(|task| text(*task) == text(*task)));
}

const GOLDEN: [&str; 9] = [
    "niah_single_1 eb33d63d56ae2793",
    "niah_single_2 6a24bf75c94c4256",
    "niah_single_3 e8bd5235d485573c",
    "niah_multikey_1 188836b7c8c921df",
    "niah_multikey_2 17ef28dc8c10924c",
    "niah_multikey_3 2ad8ef4b2bc4feda",
    "niah_multivalue d277a341b7bfb13e",
    "niah_multiquery bccd79b2892133a7",
    "vt bbb5402522e319bc",
];

#[test]
fn keys_are_limited_by_the_file() {
    let case = case(Task::NiahMultikey2, 16384, 0);
    let found = needles(&case.context);
    assert_eq!(set(found.iter().map(|found| found.0)).len(), 1024);
    assert_eq!(found.len(), 1024);
    // Each of the 256 values belongs to four of the 1024 keys.
    assert_eq!(set(found.iter().map(|found| found.1)).len(), 256);
    assert!(taken(&case, count) * 100 > 16384 * 99, "filler does the rest");
    assert_right(Task::NiahMultikey2, &case);
}

#[test]
fn tasks_without_words_are_refused() {
    for task in [Task::Cwe, Task::Fwe, Task::Qa1, Task::Qa2] {
        let refused = Texts::open(&file()).unwrap().case(task, 1000, 0, &count).unwrap_err();
        let end = format!("the vocabulary has no words for `{task}`; expected niah_... or vt");
        assert!(refused.to_string().ends_with(&end), "{refused}");
    }
    let refused = Texts::open(&file()).unwrap().with_haystack(&file()).unwrap_err().to_string();
    assert!(refused.ends_with("a vocabulary has its own haystack; expected no other"));
}

#[test]
fn errors_of_broken_files_name_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.json");
    let refusal = |content: &str| {
        fs::write(&path, content).unwrap();
        Texts::open(&path)
            .unwrap_err()
            .to_string()
            .rsplit_once("words.json: ")
            .unwrap()
            .1
            .to_owned()
    };
    let changed = |pointer: &str, value: Value| {
        let mut content = content();
        *content.pointer_mut(pointer).unwrap() = value;
        refusal(&content.to_string())
    };
    assert!(
        refusal("{")
            .starts_with("EOF while parsing an object at line 1 column 1; expected a vocabulary")
    );
    assert!(
        refusal("{\"format\": 3}")
            .starts_with("invalid type: integer `3`, expected a string at line 1")
    );
    assert_eq!(changed("/format", json!("x")), "format \"x\"; expected \"vattention-recall/1\"");
    assert_eq!(changed("/classes/keys", json!([])), "classes.keys has 0 words; expected 5 or more");
    assert_eq!(
        changed("/classes/uuids", json!([])),
        "classes.uuids has 0 words; expected 1 or more"
    );
    assert_eq!(changed("/counts", json!(["1"])), "counts has 1 words; expected 5 or more");
    assert_eq!(
        changed("/classes/filler/3", json!("two words")),
        "classes.filler has \"two words\"; expected letters, digits and _ only"
    );
    assert_eq!(
        changed("/classes/keys/1", content()["classes"]["keys"][0].clone()),
        "classes.keys has \"amber_anchor\" twice; expected each word once"
    );
    assert_eq!(changed("/noise", json!([" "])), "noise has no sentence; expected one or more");
    assert_eq!(
        changed("/templates/niah/kinds", json!({"number": "numbers"})),
        "templates.niah.kinds has no \"uuid\"; expected one"
    );
    assert_eq!(
        changed("/templates/niah/needle", json!("{key} is {what}.")),
        "templates.niah.needle has {what}; expected no hole but kinds, key, value"
    );
    assert_eq!(
        changed("/templates/vt/next", json!("VAR {variable}.")),
        "templates.vt.next lacks {previous}; expected it"
    );
    let missing = Texts::open(&folder.path().join("none.json")).unwrap_err();
    assert!(matches!(missing, Error::File { .. }), "{missing}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn every_seed_and_length_can_be_solved(
        task in proptest::sample::select(&TASKS[..]),
        tokens in 256usize..4096,
        seed: u64,
    ) {
        let case = case(task, tokens, seed);
        assert_right(task, &case);
        let size = taken(&case, count);
        prop_assert!(size <= tokens && size + 16 > tokens, "{size} of {tokens}");
    }
}
