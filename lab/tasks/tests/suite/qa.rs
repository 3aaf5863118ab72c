//! Tests of questions from files in the formats of SQuAD and HotpotQA.

use std::fs;
use std::path::Path;

use crate::common::{count, hash, set, taken};
use serde_json::{Value, json};
use tempfile::TempDir;
use vattention_tasks::{Case, Task, Texts};

/// Three articles of four paragraphs each. The first question of a paragraph has answers, the
/// second has none.
fn squad() -> Value {
    let paragraph = |a: usize, p: usize| {
        json!({
            "context": format!(
                "Article {a} paragraph {p} says w{a}{p}, of {{query}} and more words."
            ),
            "qas": [
                {
                    "id": "x",
                    "question": format!("What does {a}.{p} say?"),
                    "is_impossible": false,
                    "answers": [
                        {"text": format!("w{a}{p}"), "answer_start": 5},
                        {"text": format!("w{a}{p}"), "answer_start": 5},
                        {"text": format!("says w{a}{p}"), "answer_start": 0},
                    ],
                },
                {
                    "id": "y", "question": "Why not?", "is_impossible": true, "answers": [],
                    "plausible_answers": [],
                },
            ],
        })
    };
    let article = |a| {
        let paragraphs: Vec<_> = (0..4).map(|p| paragraph(a, p)).collect();
        json!({"title": "t", "paragraphs": paragraphs})
    };
    json!({"version": "v2.0", "data": (0..3).map(article).collect::<Vec<_>>()})
}

/// Eight questions with three paragraphs each, one of which they all share.
fn hotpot() -> Value {
    let question = |q: usize| {
        json!({
            "_id": "x", "question": format!("What is q{q}?"), "answer": format!("w{q}"),
            "type": "bridge",
            "context": [
                [format!("First {q}"), [format!("It is w{q}."), " It is."]],
                ["Shared", ["By all."]],
                [format!("Second {q}"), ["It is not."]],
            ],
        })
    };
    (0..8).map(question).collect()
}

struct FileDigests(TempDir);

impl FileDigests {
    fn new(squad: &Value, hotpot: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("squad.json"), squad.to_string()).unwrap();
        fs::write(folder.path().join("hotpot.json"), hotpot.to_string()).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn texts(&self) -> Texts {
        let texts = Texts::ruler().with_squad(&self.path("squad.json")).unwrap();
        texts.with_hotpot(&self.path("hotpot.json")).unwrap()
    }
}

/// Splits a context into its documents, and checks their numbers.
fn documents(case: &Case) -> Vec<String> {
    let (before, all) = case.context.split_once("documents.\n\n").unwrap();
    assert!(before.starts_with("Answer the question based on the given documents. Only give me"));
    let numbered = all.split("\n\n").enumerate().map(|(i, document)| {
        document.strip_prefix(&format!("Document {}:\n", i + 1)).unwrap().to_owned()
    });
    numbered.collect()
}

fn question(case: &Case) -> &str {
    let asked = case.question.split_once("other words.\n\nQuestion: ").unwrap().1;
    asked.strip_suffix(" Answer:").unwrap()
}

#[test]
fn paragraphs_of_the_same_article_are_added_first() {
    let texts = FileDigests::new(&squad(), &hotpot()).texts();
    let mut questions = Vec::new();
    for seed in 0..60 {
        let case = texts.case(Task::Qa1, 220, seed, &count).unwrap();
        assert!(taken(&case, count) <= 220 && case.tokens == 32);
        let place =
            question(&case).strip_prefix("What does ").unwrap().strip_suffix(" say?").unwrap();
        let (article, paragraph) = place.split_once('.').unwrap();
        assert_eq!(
            case.answers,
            [format!("w{article}{paragraph}"), format!("says w{article}{paragraph}")]
        );
        let documents = documents(&case);
        assert_eq!(set(&documents).len(), documents.len());
        let own = format!(
            "Article {article} paragraph {paragraph} says w{article}{paragraph}, \
             of {{query}} and more words."
        );
        assert!(documents.contains(&own), "{documents:?}");
        let near = documents
            .iter()
            .filter(|document| document.starts_with(&format!("Article {article} ")));
        assert_eq!(near.count(), documents.len().min(4));
        assert_eq!(Task::Qa1.score(&case, "It says so."), 0.0);
        assert_eq!(Task::Qa1.score(&case, &case.answers[0].to_uppercase()), 1.0);
        questions.push((place.to_owned(), documents.iter().position(|document| *document == own)));
    }
    assert_eq!(set(questions.iter().map(|question| &question.0)).len(), 12, "every question comes");
    assert!(set(questions.iter().map(|question| question.1)).len() > 3, "at several places");
}

#[test]
fn questions_have_all_of_their_paragraphs() {
    let texts = FileDigests::new(&squad(), &hotpot()).texts();
    for seed in 0..20 {
        let case = texts.case(Task::Qa2, 170, seed, &count).unwrap();
        assert!(taken(&case, count) <= 170);
        let q = question(&case).strip_prefix("What is q").unwrap().strip_suffix('?').unwrap();
        assert_eq!(case.answers, [format!("w{q}")]);
        let documents = documents(&case);
        assert!(documents.len() > 3 && set(&documents).len() == documents.len());
        for own in [
            format!("First {q}\nIt is w{q}. It is."),
            "Shared\nBy all.".into(),
            format!("Second {q}\nIt is not."),
        ] {
            assert!(documents.contains(&own), "{own}: {documents:?}");
        }
    }
    let all = texts.case(Task::Qa2, 100_000, 0, &count).unwrap();
    assert_eq!(documents(&all).len(), 17, "no more than there are");
    assert_eq!(all, texts.case(Task::Qa2, 100_000, 0, &count).unwrap());
}

#[test]
fn texts_are_stable() {
    let texts = FileDigests::new(&squad(), &hotpot()).texts();
    let hash = |task| format!("{:016x}", hash(&texts.case(task, 200, 7, &count).unwrap()));
    assert_eq!([hash(Task::Qa1), hash(Task::Qa2)], ["d2e9f717f1626efb", "1f30f36804484bbd"]);
}

#[test]
fn files_of_version_1_are_read() {
    let mut old = squad();
    for article in old["data"].as_array_mut().unwrap() {
        for paragraph in article["paragraphs"].as_array_mut().unwrap() {
            let asked = paragraph["qas"].as_array_mut().unwrap();
            asked.truncate(1);
            asked[0].as_object_mut().unwrap().remove("is_impossible");
        }
    }
    let files = FileDigests::new(&squad(), &hotpot());
    let new = files.texts().case(Task::Qa1, 150, 3, &count).unwrap();
    fs::write(files.path("squad.json"), old.to_string()).unwrap();
    assert_eq!(files.texts().case(Task::Qa1, 150, 3, &count).unwrap(), new);
}

#[test]
fn missing_files_are_named() {
    let refusal = |task| Texts::ruler().case(task, 1000, 0, &count).unwrap_err().to_string();
    assert_eq!(
        refusal(Task::Qa1),
        "`qa_1` asks about paragraphs of SQuAD; expected a file with them"
    );
    assert_eq!(
        refusal(Task::Qa2),
        "`qa_2` asks about paragraphs of HotpotQA; expected a file with them"
    );
    let refused = Texts::ruler().with_squad(Path::new("none.json")).unwrap_err().to_string();
    assert!(refused.starts_with("none.json: "), "{refused}");
    let texts = FileDigests::new(&squad(), &hotpot()).texts();
    let refused = texts.case(Task::Qa1, 100, 0, &count).unwrap_err().to_string();
    assert!(refused.starts_with("`qa_1` does not fit in 100 tokens; expected 1"), "{refused}");
}

#[test]
fn errors_of_malformed_files_name_the_place() {
    let files = FileDigests::new(&squad(), &hotpot());
    let refusal = |name: &str, content: &str| {
        fs::write(files.path(name), content).unwrap();
        let refused = match name {
            "squad.json" => Texts::ruler().with_squad(&files.path(name)),
            _ => Texts::ruler().with_hotpot(&files.path(name)),
        };
        let refused = refused.unwrap_err().to_string();
        refused.strip_prefix(&format!("{}: ", files.path(name).display())).unwrap().to_owned()
    };
    let squad_with = |pointer: &str, value: Value| {
        let mut content = squad();
        *content.pointer_mut(pointer).unwrap() = value;
        refusal("squad.json", &content.to_string())
    };
    assert_eq!(
        refusal("squad.json", "[1]\n"),
        "invalid type: integer `1`, expected a sequence at line 1 column 2; \
         expected SQuAD's {\"data\": [{\"paragraphs\": ...}]}"
    );
    assert!(
        refusal("squad.json", "{\"data\":\n[{}]}")
            .starts_with("missing field `paragraphs` at line 2 column 3; ")
    );
    assert_eq!(
        squad_with("/data", json!([])),
        "there is no question with an answer; expected some"
    );
    assert_eq!(
        squad_with("/data/1/paragraphs/2/qas/0/answers", json!([])),
        "data[1].paragraphs[2].qas[0].answers has none; expected one or more"
    );
    assert_eq!(
        squad_with("/data/0/paragraphs/3/qas/0/answers/1/text", json!(" ")),
        "data[0].paragraphs[3].qas[0].answers has an empty text; expected words"
    );
    let hotpot_with = |pointer: &str, value: Value| {
        let mut content = hotpot();
        *content.pointer_mut(pointer).unwrap() = value;
        refusal("hotpot.json", &content.to_string())
    };
    assert!(refusal("hotpot.json", "{}").starts_with(
        "invalid type: map, expected a sequence at line 1 column 0; expected HotpotQA's"
    ));
    assert!(
        hotpot_with("/2/context/1", json!(["only a title"]))
            .contains("expected a tuple of size 2 at line 1 column ")
    );
    assert_eq!(
        hotpot_with("/2/context", json!([])),
        "[2].context is empty; expected [title, [sentence, ...]]"
    );
    assert_eq!(hotpot_with("/4/answer", json!("")), "[4].answer has an empty text; expected words");
    fs::write(files.path("hotpot.json"), [b'[', 0xff]).unwrap();
    let refused = Texts::ruler().with_hotpot(&files.path("hotpot.json")).unwrap_err().to_string();
    assert!(refused.ends_with("byte 1 is not UTF-8; expected text"), "{refused}");
}
