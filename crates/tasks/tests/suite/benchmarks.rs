//! Files of benchmarks: what becomes of their rows, and what is said of wrong ones.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use vattention_tasks::{Benchmark, Case, Error, Task, Texts};

/// A folder with files, of some rows each.
fn folder(files: &[(&str, &[Value])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, rows) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines: Vec<_> = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(path, lines.concat()).unwrap();
    }
    dir
}

fn open(name: &str, dir: &Path, datasets: &[&str]) -> Result<Benchmark, Error> {
    let datasets: Vec<_> = datasets.iter().map(ToString::to_string).collect();
    Benchmark::open(name, dir, &datasets)
}

fn row(context: &str, length: u64) -> Value {
    json!({
        "input": "Who lit the lamp?", "context": context, "answers": ["Ann", "the keeper"],
        "length": length, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "1",
    })
}

/// A character is a token.
fn chars(text: &str) -> usize {
    text.chars().count()
}

fn case(benchmark: &Benchmark, task: Task, tokens: usize, place: u64) -> Result<Case, Error> {
    Texts::ruler().with_benchmark(benchmark.clone()).case(task, tokens, place, &chars)
}

#[test]
fn a_row_of_longbench_becomes_its_published_prompt() {
    let dir = folder(&[("hotpotqa.jsonl", &[row("Ann kept the {input} light.", 6)])]);
    let benchmark = open("longbench", dir.path(), &[]).unwrap();
    let [task] = benchmark.tasks()[..] else { panic!() };
    assert_eq!(task.name(), "hotpotqa");
    let case = case(&benchmark, task, 10_000, 0).unwrap();
    assert!(case.context.starts_with("Answer the question based on the given passages. Only give"));
    assert!(
        case.context.ends_with("The following are given passages.\nAnn kept the {input} light.")
    );
    assert!(case.question.ends_with("other words.\n\nQuestion: Who lit the lamp?\nAnswer:"));
    assert_eq!(
        (case.tokens, &case.answers[..]),
        (32, &["Ann".to_owned(), "the keeper".into()][..])
    );
    assert_eq!(task.score(&case, "The keeper, Ann."), 0.5_f64.max(2.0 / 3.0));
}

#[test]
fn a_long_prompt_loses_its_middle() {
    let context: String = (0..5000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    let dir = folder(&[("lcc.jsonl", &[row(&context, 1)])]);
    let benchmark = open("longbench", dir.path(), &[]).unwrap();
    let task = benchmark.tasks()[0];
    let whole = case(&benchmark, task, 100_000, 0).unwrap();
    let cut = case(&benchmark, task, 1000, 0).unwrap();
    let all = |case: &Case| format!("{}{}", case.context, case.question);
    // 64 tokens are the answer's: 468 of either end.
    let expected = format!("{}{}", &all(&whole)[..468], &all(&whole)[all(&whole).len() - 468..]);
    assert_eq!(all(&cut), expected);
    assert_eq!(cut.question, whole.question, "it is at the end");
    let error = case(&benchmark, task, 64, 0).unwrap_err();
    assert!(matches!(error, Error::TooShort { .. }), "{error}");
}

#[test]
fn wide_characters_are_not_cut_through() {
    let dir = folder(&[("gov_report.jsonl", &[row(&"über 日本 ".repeat(400), 1)])]);
    let benchmark = open("longbench", dir.path(), &[]).unwrap();
    for tokens in 700..720 {
        let case = case(&benchmark, benchmark.tasks()[0], tokens, 0).unwrap();
        let size = chars(&case.context) + chars(&case.question) + case.tokens;
        assert!(size <= tokens && size + 1 >= tokens, "{size} of {tokens}");
    }
}

#[test]
fn longbench_e_has_a_task_of_each_group_of_lengths() {
    let rows = [row("a", 3999), row("b", 4000), row("c", 7999), row("d", 9)];
    let dir = folder(&[("data/qasper_e.jsonl", &rows), ("trec.jsonl", &rows[..1])]);
    let benchmark = open("longbench", dir.path(), &["qasper_e"]).unwrap();
    let names: Vec<_> = benchmark.tasks().iter().map(|task| task.name()).collect();
    assert_eq!(names, ["qasper_e:0-4k", "qasper_e:4-8k"]);
    let texts = Texts::ruler().with_benchmark(benchmark.clone());
    assert_eq!(texts.cases(benchmark.tasks()[1], 10), 2);
    assert_eq!(texts.cases(benchmark.tasks()[1], 1), 1);
    assert_eq!(texts.cases(Task::Vt, 10), 10);
    let last = case(&benchmark, benchmark.tasks()[0], 10_000, 1).unwrap();
    assert!(last.context.ends_with("Article: d"));
}

#[test]
fn first_lines_and_classes_count_where_longbench_has_it_so() {
    let mut of = row("Type of question: person", 1);
    of["answers"] = json!(["Human being"]);
    of["all_classes"] = json!(["Human", "Human being", "Date"]);
    let dir = folder(&[("trec.jsonl", &[of])]);
    let benchmark = open("longbench", dir.path(), &[]).unwrap();
    let Task::Dataset(dataset) = benchmark.tasks()[0] else { panic!() };
    assert!(!dataset.as_chat());
    let case = case(&benchmark, benchmark.tasks()[0], 10_000, 0).unwrap();
    let score = |answer| benchmark.tasks()[0].score(&case, answer);
    assert_eq!(score("\nHuman being\nDate"), 1.0);
    assert_eq!(score("Human being, Date"), 0.5);
    assert_eq!(score("Date\nHuman being"), 0.0);
}

#[test]
fn a_file_of_ruler_is_asked_as_it_is() {
    let input = "Some text is below.\nOne is 12.\nQuestion: which number?";
    let rows = [json!({ "index": 0, "input": input, "outputs": ["12", "13"], "length": 20 })];
    let newer =
        [json!({ "index": 0, "input": "A text.\nWhat is it?", "outputs": ["12"], "length": 9,
                         "answer_prefix": " It is" })];
    let dir = folder(&[("vt/validation.jsonl", &rows), ("qa_1/validation.jsonl", &newer)]);
    let benchmark = open("ruler", dir.path(), &[]).unwrap();
    let [vt, qa] = benchmark.tasks()[..] else { panic!() };
    let of_vt = case(&benchmark, vt, 1000, 0).unwrap();
    assert_eq!(format!("{}{}", of_vt.context, of_vt.question), input);
    assert_eq!(of_vt.question, "\nQuestion: which number?");
    assert_eq!((of_vt.tokens, vt.score(&of_vt, "12")), (30, 0.5));
    let of_qa = case(&benchmark, qa, 1000, 0).unwrap();
    assert_eq!(
        (of_qa.question.as_str(), of_qa.beginning.as_str()),
        ("\nWhat is it? It is", " It is")
    );
    assert!(matches!(case(&benchmark, vt, 50, 0), Err(Error::TooShort { .. })));
}

#[test]
fn the_question_of_babilong_names_no_right_label() {
    let of = json!({ "input": " Mary is here. ", "question": "Where was Mary before the office?",
                     "target": "garden" });
    let dir = folder(&[("qa2/4k.jsonl", &[of])]);
    let benchmark = open("babilong", dir.path(), &["qa2_4k"]).unwrap();
    let task = benchmark.tasks()[0];
    let case = case(&benchmark, task, 10_000, 0).unwrap();
    assert!(case.context.ends_with("\n\n<context>\nMary is here."));
    assert_eq!(case.question, "\n</context>\n\nQuestion: Where was Mary before the office?");
    assert_eq!(task.score(&case, "Before the office, the garden."), 1.0);
    assert_eq!(task.score(&case, "the garden or the kitchen"), 0.0);
}

#[test]
fn an_answer_to_a_problem_takes_what_the_prompt_leaves() {
    let of =
        [json!({ "problem": "1 + 1", "answer": "2" }), json!({ "Problem": "2 + 2", "Answer": 4 })];
    let dir = folder(&[("math500.jsonl", &of[..1]), ("aime2024.jsonl", &of)]);
    let benchmark = open("aime2024", dir.path(), &[]).unwrap();
    let task = benchmark.tasks()[0];
    let case = |tokens, place| case(&benchmark, task, tokens, place);
    assert_eq!(case(100, 0).unwrap().tokens, 100 - 5 - chars(&case(100, 0).unwrap().question));
    assert_eq!(case(100_000, 0).unwrap().tokens, 32768);
    assert_eq!(case(100, 1).unwrap().answers, ["4"]);
    assert_eq!(case(100, 2).unwrap().answers, ["2"], "from the first again");
    assert!(matches!(case(20, 0), Err(Error::TooShort { .. })));
}

#[track_caller]
fn refused(name: &str, dir: &Path, datasets: &[&str], expected: &[&str]) {
    let told = open(name, dir, datasets).unwrap_err().to_string();
    for part in expected {
        assert!(told.contains(part), "{told:?} lacks {part:?}");
    }
}

#[test]
fn every_line_that_is_wrong_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let good = row("a", 1).to_string();
    let lines = [
        &good,
        "{\"input\": ",
        "[1]",
        "",
        "{\"context\": \"a\", \"input\": \"b\"}",
        "{\"context\": 1.5, \"input\": \"b\", \"answers\": [\"c\"]}",
        "{\"context\": \"a\", \"input\": \"b\", \"answers\": []}",
        "{\"context\": \"a\", \"input\": \"b\", \"answers\": [1]}",
        &good,
    ];
    fs::write(dir.path().join("qasper.jsonl"), lines.join("\n")).unwrap();
    let expected = [
        "qasper.jsonl: line 2: EOF while parsing",
        "line 3: invalid type: sequence",
        "line 5: no column answers; it has context, input",
        "line 6: context is a number; expected text",
        "line 7: answers is an empty list; expected a list of texts",
        "line 8: answers is a list; expected a list of texts",
    ];
    refused("longbench", dir.path(), &[], &expected);
    let told = open("longbench", dir.path(), &[]).unwrap_err().to_string();
    assert_eq!(told.matches("line ").count(), 6, "{told}");
    fs::write(dir.path().join("qasper.jsonl"), "x\n".repeat(30)).unwrap();
    refused("longbench", dir.path(), &[], &["line 20:", "and 10 more"]);
    fs::write(dir.path().join("qasper.jsonl"), b"\xff").unwrap();
    refused("longbench", dir.path(), &[], &["byte 0 is not UTF-8"]);
    fs::write(dir.path().join("qasper.jsonl"), "\n \n").unwrap();
    refused("longbench", dir.path(), &[], &["qasper.jsonl: there is no row; expected a case"]);
}

#[test]
fn names_and_files_that_are_missing_are_told_with_those_there_are() {
    let dir =
        folder(&[("qasper_e.jsonl", &[json!({ "context": "", "input": "", "answers": ["a"] })])]);
    refused("long", dir.path(), &[], &["`long`", "babilong, loogle, infinitebench, math500, aime2024"]);
    refused("longbench", dir.path(), &["qa"], &["`qa`", "narrativeqa, qasper, qasper_e"]);
    refused("longbench", dir.path(), &["dureader"], &["dureader is Chinese", "jieba"]);
    refused("longbench", dir.path(), &["trec"], &["expected trec.jsonl or data/trec.jsonl"]);
    refused("ruler", dir.path(), &[], &["expected niah_single_1/validation.jsonl or"]);
    refused("longbench", dir.path(), &[], &["line 1: no column length"]);
}

#[test]
fn a_json_array_has_a_row_in_each_item() {
    let of = json!({ "input": "Mary is here.", "question": "Where is Mary?", "target": "garden" });
    let dir = folder(&[("data/qa1/256k.json", &[json!([of, of])])]);
    let benchmark = open("babilong", dir.path(), &[]).unwrap();
    assert_eq!(benchmark.tasks()[0].name(), "qa1_256k");
    let file = dir.path().join("data/qa1/256k.json");
    fs::write(&file, format!("[{of}, 1, {{}}]")).unwrap();
    let expected = ["item 2: it is a number; expected an object", "item 3: no column input"];
    refused("babilong", dir.path(), &[], &expected);
    fs::write(&file, "[{").unwrap();
    refused("babilong", dir.path(), &[], &["expected a JSON array"]);
}

/// Written by pyarrow 26 as `tools/make_metric_golden.py` has it, with snappy.
const PARQUET: &[u8] = include_bytes!("../golden/rows.parquet");
/// The same with others.
const GZIP: &[u8] = include_bytes!("../golden/rows-gzip.parquet");
const ZSTD: &[u8] = include_bytes!("../golden/rows-zstd.parquet");
const LZ4: &[u8] = include_bytes!("../golden/rows-lz4.parquet");

#[test]
fn parquet_has_the_same_rows_however_it_is_compressed() {
    let rows = [row("Ann kept the light.", 6), row("Über 日本", 7)];
    let lines = folder(&[("hotpotqa.jsonl", &rows)]);
    let same = open("longbench", lines.path(), &[]).unwrap();
    let task = same.tasks()[0];
    let dir = tempfile::tempdir().unwrap();
    for file in [PARQUET, GZIP, ZSTD] {
        fs::write(dir.path().join("hotpotqa.parquet"), file).unwrap();
        let benchmark = open("longbench", dir.path(), &[]).unwrap();
        assert_eq!(benchmark.tasks(), [task]);
        for place in 0..2 {
            let of = |benchmark| case(benchmark, task, 10_000, place).unwrap();
            assert_eq!(of(&benchmark), of(&same));
        }
    }
    fs::write(dir.path().join("trec.parquet"), PARQUET).unwrap();
    refused("longbench", dir.path(), &["trec"], &["row 1: all_classes is null", "row 2: "]);
    fs::write(dir.path().join("lcc.parquet"), LZ4).unwrap();
    let expected = ["lcc.parquet: it is compressed with lz4; expected uncompressed, snappy, gzip or zstd"];
    refused("longbench", dir.path(), &["lcc"], &expected);
}

#[test]
fn a_broken_parquet_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hotpotqa.parquet");
    let mut damaged = PARQUET.to_vec();
    for place in (0..PARQUET.len()).step_by(3) {
        damaged[place] ^= 0x88;
        fs::write(&path, &damaged).unwrap();
        if let Err(error) = open("longbench", dir.path(), &[]) {
            assert!(error.to_string().contains("hotpotqa.parquet: "), "{error}");
        }
        damaged[place] = PARQUET[place];
    }
    for end in (0..PARQUET.len()).step_by(7) {
        fs::write(&path, &PARQUET[..end]).unwrap();
        refused("longbench", dir.path(), &[], &["hotpotqa.parquet: ", "expected a parquet file"]);
    }
}
