//! Tests of the files of LongBench v2 and ZeroSCROLLS, and of RULER by NeMo-Skills.

use std::fs;

use serde_json::{Value, json};
use vattention_tasks::{Case, Error, Task};

use crate::benchmarks::{assert_refused, case, chars, folder, only, open};

/// Returns an item in the form of LongBench v2.
fn choice(difficulty: &str, length: &str) -> Value {
    json!({
        "_id": "66f36490821e116aacb2cc22", "domain": "Single-Document QA", "sub_domain": "Literary",
        "difficulty": difficulty, "length": length, "question": " Who lit {context}? ",
        "choice_A": "Tom", "choice_B": "Ann\n", "choice_C": "Mia", "choice_D": "Ben",
        "answer": "B", "context": "\nAnn lit {question}. ",
    })
}

#[test]
fn items_of_longbench_v2_become_the_published_prompt() {
    let (task, case, _) = only("longbench-v2", "data.json", &json!([choice("hard", "medium")]));
    let expected = "Please read the following text and answer the question below.\n\n<text>\n\
                    Ann lit {question}.|\n</text>\n\nWhat is the correct answer to this \
                    question: Who lit {context}?\nChoices:\n(A) Tom\n(B) Ann\n(C) Mia\n\
                    (D) Ben\n\nFormat your response as follows: \"The correct answer is (insert \
                    answer here)\".";
    assert_eq!(format!("{}|{}", case.context, case.question), expected);
    assert_eq!((case.tokens, &case.groups[..]), (128, &["hard".to_owned(), "medium".into()][..]));
    assert_eq!(task.score(&case, "The correct answer is **(B)**"), 1.0);
    assert_eq!(task.score(&case, "The correct answer is (A), not B"), 0.0);
    assert_eq!(task.score(&case, "B"), 0.0);
}

#[test]
fn long_texts_of_longbench_v2_lose_their_middle() {
    let mut content = choice("easy", "long");
    content["context"] = "0123456789".repeat(500).into();
    let (task, whole, benchmark) = only("longbench-v2", "data.json", &json!([content]));
    let cut = case(&benchmark, task, 1000, 0).unwrap();
    assert_eq!(chars(&cut.context) + chars(&cut.question) + 128, 1000);
    assert_eq!(cut.question, whole.question);
    assert!(cut.context.starts_with("Please read") && cut.context.ends_with("6789"));
}

#[test]
fn wrong_items_of_longbench_v2_are_named() {
    let mut items = vec![choice("easy", "short"); 6];
    items[1]["answer"] = "E".into();
    items[2]["difficulty"] = "Easy".into();
    items[3]["length"] = 120.into();
    items[4]["choice_D"] = Value::Null;
    items[5].as_object_mut().unwrap().remove("context");
    let dir = folder(&[("data.json", &[json!(items)])]);
    let expected = [
        "data.json: item 2: answer is \"E\"; expected one of A, B, C, D",
        "item 3: difficulty is \"Easy\"; expected one of easy, hard",
        "item 4: length is \"120\"; expected one of short, medium, long",
        "item 5: choice_D is null; expected text",
        "item 6: no column context; it has _id",
    ];
    assert_refused("longbench-v2", dir.path(), &[], &expected);
    assert_refused("longbench-v2", &dir.path().join("none"), &[], &["expected data.jsonl"]);
}

/// Returns a line in the form of ZeroSCROLLS. The question follows the document "Ünder the lamp.".
fn line(id: &str, output: &str) -> Value {
    let input = "Answer the question.\n\nÜnder the lamp.\n\nQuestion:\nWho?\n\nAnswer:\n";
    json!({
        "id": id, "pid": format!("{id}_{output}"), "input": input, "output": output,
        "document_start_index": 22, "document_end_index": 37,
        "query_start_index": 37, "query_end_index": 54,
        "truncation_seperator": "... [The rest is omitted]",
    })
}

#[test]
fn lines_of_zero_scrolls_keep_their_prompts() {
    let (task, case, _) =
        only("zero-scrolls", "narrative_qa/validation.jsonl", &line("1", "Zoë and Émile"));
    assert_eq!(task.name(), "narrative_qa");
    assert_eq!(case.context, "Answer the question.\n\nÜnder the lamp.");
    assert_eq!(case.question, "\n\nQuestion:\nWho?\n\nAnswer:\n");
    assert_eq!(case.tokens, 64);
    assert_eq!(task.score(&case, "The Zoe, and Emile!"), 1.0, "letters are compared as ASCII");
    assert_eq!(task.score(&case, "zoe"), 0.5);
}

#[test]
fn lines_with_the_same_prompt_are_right_answers_to_one_case() {
    let mut other = line("2", "Tom");
    other["input"] = other["input"].as_str().unwrap().replace("Who?", "Whom?").into();
    let rows = [line("1", "Ann"), other, line("1", "the keeper")];
    let dir = folder(&[("qasper/validation.jsonl", &rows)]);
    let benchmark = open("zero-scrolls", dir.path(), &[]).unwrap();
    let task = benchmark.tasks()[0];
    let answers = |place| case(&benchmark, task, 1000, place).unwrap().answers;
    assert_eq!(answers(0), ["Ann", "the keeper"]);
    assert_eq!(answers(1), ["Tom"]);
    assert_eq!(answers(2), ["Ann", "the keeper"], "there are two cases");
    let first = case(&benchmark, task, 1000, 0).unwrap();
    assert_eq!(task.score(&first, "keeper"), 1.0);
}

#[test]
fn long_documents_of_zero_scrolls_lose_their_end() {
    let (task, whole, benchmark) =
        only("zero-scrolls", "quality/validation.jsonl", &line("1", "(B) Ann"));
    let all = chars(&whole.context) + chars(&whole.question) + 10;
    assert_eq!(case(&benchmark, task, all, 0).unwrap().context, whole.context);
    let cut: Case = case(&benchmark, task, all - 1, 0).unwrap();
    // The omission has 25 characters, so the context loses 26.
    let kept: String = whole.context.chars().take(chars(&whole.context) - 26).collect();
    assert_eq!(cut.context, format!("{kept}... [The rest is omitted]"));
    assert_eq!(cut.question, whole.question);
    let least = chars(&whole.question) + 10 + 25;
    assert!(case(&benchmark, task, least, 0).is_ok());
    let error = case(&benchmark, task, least - 1, 0).unwrap_err();
    assert!(matches!(error, Error::TooShort { least: found, .. } if found == least), "{error}");
}

#[test]
fn tasks_of_zero_scrolls_have_their_metrics() {
    let score = |name: &str, right: &str, answer: &str| {
        let (task, case, _) =
            only("zero-scrolls", &format!("{name}/validation.jsonl"), &line("1", right));
        (task.score(&case, answer), task.other_scores(&case, answer).len())
    };
    assert_eq!(score("gov_report", "Ann kept the lamp", "the lamp Ann kept").1, 3);
    assert_eq!(score("quality", "(B) Ann", "I choose B."), (1.0, 0));
    assert_eq!(score("space_digest", "40%", "about 50 or 60%"), (0.25, 0));
    assert_eq!(score("book_sum_sort", "2, 1, 3", "2, 3, 1"), (2.0 / 3.0, 0));
    assert_eq!(score("musique", "the north pier", "North pier"), (1.0, 0));
}

#[test]
fn wrong_lines_of_zero_scrolls_are_named() {
    let mut rows = vec![line("1", "Ann"); 4];
    rows[0]["output"] = Value::Null;
    rows[1]["query_start_index"] = 900.into();
    rows[2].as_object_mut().unwrap().remove("truncation_seperator");
    let dir = folder(&[
        ("musique/validation.jsonl", &rows),
        ("quality/validation.jsonl", &[line("1", "Ann")]),
        ("space_digest/validation.jsonl", &[line("1", "half")]),
        ("book_sum_sort/validation.jsonl", &[line("1", "1, 3"), line("2", "1")]),
    ]);
    let refuse = |dataset, expected: &[&str]| {
        assert_refused("zero-scrolls", dir.path(), &[dataset], expected);
    };
    refuse(
        "musique",
        &[
            "line 1: output is null; expected text",
            "line 2: query_start_index is 900; expected at most 63, the length of input",
            "line 3: no column truncation_seperator",
        ],
    );
    refuse("quality", &["line 1: output is \"Ann\"; expected a letter of A to D"]);
    refuse("space_digest", &["output is \"half\"; expected a percentage such as 40%"]);
    refuse(
        "book_sum_sort",
        &["line 1: output is \"1, 3\"; expected the numbers from 1 to n", "line 2"],
    );
    refuse("qmsum", &["expected qmsum/validation.jsonl or qmsum.jsonl"]);
}

#[test]
fn files_of_ruler_by_nemo_skills_are_read() {
    let row = json!({
        "index": 3, "question": "A text with 12.\nWhat is the number?", "expected_answer": ["12"],
        "length": 131_072, "generation": "The number is",
    });
    let (task, case, _) = only("ruler", "niah_single_1/test.jsonl", &row);
    assert_eq!(case.question, "\nWhat is the number? The number is");
    assert_eq!((case.beginning.as_str(), task.score(&case, "12")), (" The number is", 1.0));
    let wrong = json!({ "question": "A text.", "outputs": ["12"] });
    let dir = folder(&[("vt/test.jsonl", &[wrong])]);
    assert_refused(
        "ruler",
        dir.path(),
        &[],
        &["line 1: no column expected_answer; it has question, outputs"],
    );
}

#[test]
fn shards_of_hugging_face_are_found_by_their_names() {
    let dir = folder(&[]);
    fs::create_dir(dir.path().join("data")).unwrap();
    let path = dir.path().join("data/train-00000-of-00001.parquet");
    fs::write(path, include_bytes!("../golden/rows.parquet")).unwrap();
    // The file has columns of another benchmark, so it is opened and refused.
    let expected = ["data/train-00000-of-00001.parquet: row 1: no column problem"];
    assert_refused("aime2026", dir.path(), &[], &expected);
    let content = json!({ "problem_idx": 1, "problem": "1 + 1", "answer": 2 });
    let (task, case, _): (Task, Case, _) = only("aime2026", "data/train.jsonl", &content);
    assert_eq!(task.name(), "aime2026");
    assert_eq!(task.score(&case, "It is \\boxed{002}."), 1.0);
}
