//! Tests of benchmarks' files: the cases of their rows, and errors of wrong rows.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use vattention_tasks::{Benchmark, Case, Error, Task, Texts};

/// Creates a folder with files of some rows each.
pub(crate) fn folder(files: &[(&str, &[Value])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, rows) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines: Vec<_> = rows.iter().map(|row| format!("{row}\n")).collect();
        fs::write(path, lines.concat()).unwrap();
    }
    dir
}

pub(crate) fn open(name: &str, dir: &Path, datasets: &[&str]) -> Result<Benchmark, Error> {
    let datasets: Vec<_> = datasets.iter().map(ToString::to_string).collect();
    Benchmark::open(name, dir, &datasets)
}

fn row(context: &str, length: u64) -> Value {
    json!({
        "input": "Who lit the lamp?", "context": context, "answers": ["Ann", "the keeper"],
        "length": length, "dataset": "qasper", "language": "en", "all_classes": null, "_id": "1",
    })
}

/// Counts characters as tokens.
pub(crate) fn chars(text: &str) -> usize {
    text.chars().count()
}

pub(crate) fn case(
    benchmark: &Benchmark,
    task: Task,
    tokens: usize,
    place: u64,
) -> Result<Case, Error> {
    Texts::ruler().with_benchmark(benchmark.clone()).case(task, tokens, place, &chars)
}

/// Returns the only task of a file with one row, its case, and the benchmark.
#[track_caller]
pub(crate) fn only(name: &str, file: &str, row: &Value) -> (Task, Case, Benchmark) {
    let dir = folder(&[(file, std::slice::from_ref(row))]);
    let benchmark = open(name, dir.path(), &[]).unwrap();
    let [task] = benchmark.tasks()[..] else { panic!("{file}") };
    (task, case(&benchmark, task, 100_000, 0).unwrap(), benchmark)
}

#[test]
fn rows_of_longbench_become_the_published_prompts() {
    let content = row("Ann kept the {input} light.", 6);
    let (task, case, _) = only("longbench", "hotpotqa.jsonl", &content);
    assert_eq!(task.name(), "hotpotqa");
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
fn long_prompts_lose_their_middle() {
    let context: String = (0..5000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    let (task, whole, benchmark) = only("longbench", "lcc.jsonl", &row(&context, 1));
    let cut = case(&benchmark, task, 1000, 0).unwrap();
    let all = |case: &Case| format!("{}{}", case.context, case.question);
    // The answer takes 64 tokens, which leaves 468 at either end.
    let expected = format!("{}{}", &all(&whole)[..468], &all(&whole)[all(&whole).len() - 468..]);
    assert_eq!(all(&cut), expected);
    assert_eq!(cut.question, whole.question, "it is at the end");
    let error = case(&benchmark, task, 64, 0).unwrap_err();
    assert!(matches!(error, Error::TooShort { .. }), "{error}");
}

#[test]
fn characters_of_several_bytes_are_not_split() {
    let content = row(&"über 日本 ".repeat(400), 1);
    let (task, _, benchmark) = only("longbench", "gov_report.jsonl", &content);
    for tokens in 700..720 {
        let case = case(&benchmark, task, tokens, 0).unwrap();
        let size = chars(&case.context) + chars(&case.question) + case.tokens;
        assert!(size <= tokens && size + 1 >= tokens, "{size} of {tokens}");
    }
}

#[test]
fn longbench_e_has_a_task_for_each_group_of_lengths() {
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
fn first_lines_and_classes_count_as_in_longbench() {
    let mut content = row("Type of question: person", 1);
    content["answers"] = json!(["Human being"]);
    content["all_classes"] = json!(["Human", "Human being", "Date"]);
    let (task, case, _) = only("longbench", "trec.jsonl", &content);
    assert!(matches!(task, Task::Dataset(dataset) if !dataset.as_chat()));
    let score = |answer| task.score(&case, answer);
    assert_eq!(score("\nHuman being\nDate"), 1.0);
    assert_eq!(score("Human being, Date"), 0.5);
    assert_eq!(score("Date\nHuman being"), 0.0);
}

#[test]
fn files_of_ruler_keep_their_prompts() {
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
fn labels_in_questions_of_babilong_are_no_answers() {
    let content = json!({ "input": " Mary is here. ",
        "question": "Where was Mary before the office?", "target": "garden" });
    let (task, case, _) = only("babilong", "qa2/4k.jsonl", &content);
    assert!(case.context.ends_with("\n\n<context>\nMary is here."));
    assert_eq!(case.question, "\n</context>\n\nQuestion: Where was Mary before the office?");
    assert_eq!(task.score(&case, "Before the office, the garden."), 1.0);
    assert_eq!(task.score(&case, "the garden or the kitchen"), 0.0);
}

#[test]
fn answers_to_problems_are_limited_by_the_prompt() {
    let content =
        [json!({ "problem": "1 + 1", "answer": "2" }), json!({ "Problem": "2 + 2", "Answer": 4 })];
    let dir = folder(&[("math500.jsonl", &content[..1]), ("aime2024.jsonl", &content)]);
    let benchmark = open("aime2024", dir.path(), &[]).unwrap();
    let task = benchmark.tasks()[0];
    let case = |tokens, place| case(&benchmark, task, tokens, place);
    assert_eq!(case(100, 0).unwrap().tokens, 100 - 5 - chars(&case(100, 0).unwrap().question));
    assert_eq!(case(100_000, 0).unwrap().tokens, 32768);
    assert_eq!(case(100, 1).unwrap().answers, ["4"]);
    assert_eq!(case(100, 2).unwrap().answers, ["2"], "from the first again");
    assert!(matches!(case(20, 0), Err(Error::TooShort { .. })));
}

#[test]
fn each_question_of_loogle_is_a_case() {
    let pairs =
        r#"[{'Q': "Where's Ann?", 'A': 'In Brack.', 'S': ['x']}, {'Q': 'Who?', 'A': 'Tom'}]"#;
    let rows = [
        json!({ "input": "A {Q} text.", "title": "t", "qa_pairs": pairs, "output": "none" }),
        json!({ "input": "Other.", "qa_pairs": [{ "Q": "When?", "A": 1890 }] }),
    ];
    let dir = folder(&[("LooGLE-testdata/shortdep_qa.jsonl", &rows)]);
    let benchmark = open("loogle", dir.path(), &[]).unwrap();
    assert_eq!(benchmark.files(), [dir.path().join("LooGLE-testdata/shortdep_qa.jsonl")]);
    let task = benchmark.tasks()[0];
    let texts = Texts::ruler().with_benchmark(benchmark.clone());
    assert_eq!(texts.cases(task, 10), 3);
    let case = |place| case(&benchmark, task, 10_000, place).unwrap();
    assert_eq!(
        case(0).context,
        "Please answer the question based on the long texts below. \nA {Q} text."
    );
    assert_eq!(case(0).question, "\nQuestion: Where's Ann?\nAnswer: ");
    assert_eq!(
        (case(1).question.as_str(), &case(1).answers[..]),
        ("\nQuestion: Who?\nAnswer: ", &["Tom".to_owned()][..])
    );
    assert!(case(2).context.ends_with("Other.") && case(2).answers == ["1890"]);
    assert_eq!((case(0).tokens, task.score(&case(0), "It is Brack")), (300, 0.5));
    let others = task.other_scores(&case(0), "In Brack.");
    let names: Vec<_> = others.iter().map(|(metric, _)| metric.name()).collect();
    assert_eq!(names, ["rouge-1-recall", "rouge-2-recall", "bleu-1", "bleu-4"]);
    assert_eq!((others[0].1, others[2].1), (1.0, 1.0));
}

/// LooGLE's script scores an empty answer as "None".
#[test]
fn an_empty_answer_to_loogle_is_the_word_none() {
    let content =
        json!({ "input": "A text.", "qa_pairs": [{ "Q": "How many?", "A": "None of them" }] });
    let (task, case, _) = only("loogle", "longdep_qa.jsonl", &content);
    assert_eq!(task.score(&case, ""), 1.0 / 3.0);
    assert_eq!(task.score(&case, " "), 0.0);
}

#[test]
fn clozes_and_papers_of_loogle_have_their_prompts() {
    let pairs = "[{'Q': '<mask-1> of <mask-0>', 'S': '', \
                 'A': {'<mask-0>': 'Brack', '<mask-1>': 'Ann Tarrow'}}]";
    let cloze = json!({ "input": "Ann Tarrow of Brack.", "qa_pairs": pairs, "output": "none" });
    let paper = json!({ "input": "A paper.", "qa_pairs": "none", "output": "Short." });
    let dir = folder(&[
        ("shortdep_cloze.jsonl", &[cloze]),
        ("data/longdep_summarization.jsonl", &[paper]),
    ]);
    let benchmark = open("loogle", dir.path(), &[]).unwrap();
    let [summary, cloze] = benchmark.tasks()[..] else { panic!() };
    let of_summary = case(&benchmark, summary, 10_000, 0).unwrap();
    assert_eq!(
        format!("{}{}", of_summary.context, of_summary.question),
        "Please generate a summary of the below paper. \nA paper.\n Summarization: "
    );
    assert_eq!((of_summary.tokens, &of_summary.answers[..]), (500, &["Short.".to_owned()][..]));
    let of_cloze = case(&benchmark, cloze, 10_000, 0).unwrap();
    assert!(of_cloze.context.contains("for example: {'<mask-0>': 'Bob', '<mask-1>': 'Gorrosion"));
    let question = "\n Question: <mask-1> of <mask-0> What are the masked entities? \nAnswer:";
    assert_eq!((of_cloze.question.as_str(), of_cloze.tokens), (question, 50));
    let answer = "{'<mask-0>': 'Brack', '<mask-1>': 'Tarrow'}";
    assert_eq!(cloze.score(&of_cloze, answer), 0.5);
    assert_eq!(cloze.other_scores(&of_cloze, answer)[0].1, 1.0);
}

/// Reads a row in the form of Hugging Face.
#[track_caller]
fn infinite(name: &str, row: &Value) -> (Task, Case, Benchmark) {
    only("infinitebench", &format!("{name}.jsonl"), row)
}

#[test]
fn rows_of_infinitebench_become_their_published_prompts() {
    let row = |input: &str, answer: Value| {
        json!({
            "id": 0, "context": "The text.", "input": input, "answer": answer,
            "options": ["w", "x", "y", "z"],
        })
    };
    for (name, input, answer, prompt, answers) in [
        (
            "passkey",
            "What is the pass key?",
            json!(["71432"]),
            "There is an important info hidden inside a lot of irrelevant text. Find it and \
             memorize it. I will quiz you about the important information.\n\nThe text.|\n\n\
             What is the pass key?\n\nThe pass key is",
            vec!["71432"],
        ),
        (
            "longbook_choice_eng",
            "Which?",
            json!(["y"]),
            "Read the book and answer the question.\n\nThe text.|\n\nQuestion: Which?\n\
             A. w\nB. x\nC. y\nD. z\n\nThe letter of the correct answer is",
            vec!["y", "C"],
        ),
        (
            "code_debug",
            "Which?",
            json!(["x", "B"]),
            "Following is a Python code where exactly one of the functions/methods has a \
             deliberate error that makes it crash.\n\nThe text.|\n\nOptions:\n\
             A. w\nB. x\nC. y\nD. z\n\nThe correct option is:",
            vec!["x", "B"],
        ),
        (
            "code_run",
            "Run func_7(1x) or func_12(-3), please.",
            json!([-4]),
            "There is a function called func_12 in the following Python code.\n\n\
             The text.|\n\nPlease compute the exact value of func_12(-3). \
             The value of func_12(-3) is",
            vec!["-4"],
        ),
        (
            "math_find",
            "Say one number. The 2nd Largest number of the list is: ",
            json!([3.5]),
            "What is the 2nd largest number in the following list?\n\nThe text.|\n\n\
             Say one number. The 2nd Largest number of the list is: ",
            vec!["3.5"],
        ),
        (
            "longbook_sum_eng",
            "",
            json!("One.\nTwo."),
            "Summarize the book below.\n\nThe text.|\n\nSummary:",
            vec!["One.\nTwo."],
        ),
        (
            "math_calc",
            "",
            json!([[1, 2]]),
            "Let us calculate the intermediate values of an expression.\n\n\
             Expression: 1 + 3 + 4\nValues: [1, 4, 8]\n\n\
             Expression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\n\
             Expression: The text.|\nValues:",
            vec!["1", "2"],
        ),
        (
            "longbook_qa_chn",
            "谁？",
            json!(["安"]),
            "阅读以下书籍然后回答问题。\n\nThe text.|\n\n问题：谁？\n答案：",
            vec!["安"],
        ),
    ] {
        let (_, case, _) = infinite(name, &row(input, answer));
        assert_eq!(format!("{}|{}", case.context, case.question), prompt, "{name}");
        assert_eq!(case.answers, answers, "{name}");
    }
    // The published scripts use these keys in their own files.
    let own = json!({ "content": "A text.", "func": "f", "func_call": "f(1)", "answer": 2 });
    assert!(infinite("code_run", &own).1.question.contains("value of f(1). The"));
}

#[test]
fn infinitebench_has_the_metrics_and_lengths_of_its_scripts() {
    let row =
        |context: &str, answer: Value| json!({ "context": context, "input": "", "answer": answer });
    let content = row(&"a ".repeat(3000), json!(["A keeper.\nA bell."]));
    let (task, case, benchmark) = infinite("longbook_sum_eng", &content);
    assert_eq!((case.tokens, task.score(&case, "a bell\na keeper")), (1200, 1.0));
    let names: Vec<_> =
        task.other_scores(&case, "").iter().map(|(metric, _)| metric.name()).collect();
    assert_eq!(
        names,
        ["rouge-score-lsum-stemmed", "rouge-score-1", "rouge-score-2", "rouge-score-l"]
    );
    let names = json!(["ECKER", "COMMANDER BILL ECKER"]);
    let (dialogues, dialogue, _) = infinite("longdialogue_qa_eng", &row("A scene.", names));
    let score = |answer| dialogues.score(&dialogue, answer);
    assert_eq!(["Commander Bill Ecker", "it is ecker.", "Bill"].map(score), [1.0, 1.0, 0.0]);
    // The answer takes 1200 tokens, which leaves 400 at either end.
    let cut = self::case(&benchmark, task, 2000, 0).unwrap();
    let all = |case: &Case| format!("{}{}", case.context, case.question);
    let whole = all(&case);
    assert_eq!(all(&cut), format!("{}{}", &whole[..400], &whole[whole.len() - 400..]));
    // Sums are not cut; the answer is limited to the remaining tokens.
    let (task, case, benchmark) = infinite("math_calc", &row("1 + 2", json!([1, 3])));
    let prompt = chars(&all(&case));
    assert_eq!((case.tokens, task.score(&case, "[1, 4")), (30_000, 0.5));
    assert_eq!(self::case(&benchmark, task, prompt + 9, 0).unwrap().tokens, 9);
    assert!(matches!(self::case(&benchmark, task, prompt, 0), Err(Error::TooShort { .. })));
}

#[test]
fn errors_of_newer_benchmarks_name_the_row() {
    let make_row = |more: Value| {
        let mut row = json!({ "context": "a", "input": "b", "options": ["w", "x", "y", "z"] });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        row
    };
    let dir = folder(&[
        (
            "longbook_choice_eng.jsonl",
            &[
                make_row(json!({})),
                make_row(json!({ "answer": [] })),
                make_row(json!({ "answer": ["v"] })),
                make_row(json!({ "answer": ["w", "E"] })),
                make_row(json!({ "answer": "w", "options": ["w"] })),
                make_row(json!({ "answer": [null] })),
            ],
        ),
        (
            "code_run.jsonl",
            &[
                make_row(json!({ "answer": 1 })),
                make_row(json!({ "answer": "one", "input": "func_1(2)" })),
            ],
        ),
        ("math_find.jsonl", &[make_row(json!({ "answer": 1, "input": "The largest\nof" }))]),
        (
            "shortdep_qa.jsonl",
            &[
                json!({ "input": "a", "qa_pairs": "none" }),
                json!({ "input": "a", "qa_pairs": "[{'Q': 'b'}]" }),
                json!({ "input": "a", "qa_pairs": [1] }),
                json!({ "input": "a", "qa_pairs": "[{'A': 'b'}, {'Q': None, 'A': 'b'}]" }),
                json!({ "input": "a" }),
            ],
        ),
        (
            "shortdep_cloze.jsonl",
            &[
                json!({ "input": "a", "qa_pairs": [{ "Q": "b", "A": "c" }] }),
                json!({ "input": "a", "qa_pairs": [{ "Q": "b", "A": {} }] }),
                json!({ "input": "a", "qa_pairs": [{ "Q": "b", "A": { "<mask-0>": ["c"] } }] }),
            ],
        ),
        ("longdep_summarization.jsonl", &[]),
    ]);
    let choice = [
        "line 1: no column answer; it has context, input, options",
        "line 2: answer is an empty list; expected texts or numbers, at least one",
        "line 3: answer is none of the options",
        "line 4: answer is a list; expected an option, and its letter",
        "line 5: options has 1 texts; expected 4",
        "line 6: answer is a list; expected texts or numbers",
    ];
    assert_refused("infinitebench", dir.path(), &["longbook_choice_eng"], &choice);
    let run = [
        "line 1: input has no call; expected func_1(2)",
        "line 2: answer is text; expected a number",
    ];
    assert_refused("infinitebench", dir.path(), &["code_run"], &run);
    assert_refused(
        "infinitebench",
        dir.path(),
        &["math_find"],
        &["line 1: input does not say what to find"],
    );
    let questions = [
        "line 1: qa_pairs is text, and no list of questions; expected one, as JSON or as Python",
        "line 2: question 1: no A; it has Q",
        "line 3: question 1: it is a number; expected Q and A",
        "line 4: question 1: no Q; it has A",
        "line 5: no column qa_pairs; it has input",
    ];
    assert_refused("loogle", dir.path(), &["shortdep_qa"], &questions);
    let clozes = [
        "line 1: question 1: A is text; expected names by masks",
        "line 2: question 1: A is an object; expected names by masks",
        "line 3: question 1: <mask-0> is a list; expected text",
    ];
    assert_refused("loogle", dir.path(), &["shortdep_cloze"], &clozes);
    assert_refused(
        "loogle",
        dir.path(),
        &["longdep_summarization"],
        &["there is no row; expected a case"],
    );
}

#[test]
fn babilong_has_the_tasks_with_published_labels() {
    let content = [json!({
        "input": "Bill is either in the park or the school.",
        "question": "Is Bill in the park?", "target": "maybe",
    })];
    let dir = folder(&[("qa10/1k.jsonl", &content), ("qa9/1k.jsonl", &content)]);
    let benchmark = open("babilong", dir.path(), &[]).unwrap();
    let names: Vec<_> = benchmark.tasks().iter().map(|task| task.name()).collect();
    assert_eq!(names, ["qa9_1k", "qa10_1k"]);
    let task = benchmark.tasks()[1];
    let case = case(&benchmark, task, 10_000, 0).unwrap();
    assert_eq!(case.labels, ["maybe", "no", "yes"]);
    assert!(
        case.context.contains("Answer: yes\n</example>\n<context>\n\n\nYour answer should contain")
    );
    assert_eq!((task.score(&case, "maybe."), task.score(&case, "maybe not")), (1.0, 0.0));
    assert_refused("babilong", dir.path(), &["qa8_1k"], &["`qa8_1k`", "qa7_0k"]);
}

#[track_caller]
pub(crate) fn assert_refused(name: &str, dir: &Path, datasets: &[&str], expected: &[&str]) {
    let message = open(name, dir, datasets).unwrap_err().to_string();
    for part in expected {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn every_wrong_line_is_named() {
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
    assert_refused("longbench", dir.path(), &[], &expected);
    let message = open("longbench", dir.path(), &[]).unwrap_err().to_string();
    assert_eq!(message.matches("line ").count(), 6, "{message}");
    fs::write(dir.path().join("qasper.jsonl"), "x\n".repeat(30)).unwrap();
    assert_refused("longbench", dir.path(), &[], &["line 20:", "and 10 more"]);
    fs::write(dir.path().join("qasper.jsonl"), b"\xff").unwrap();
    assert_refused("longbench", dir.path(), &[], &["byte 0 is not UTF-8"]);
    fs::write(dir.path().join("qasper.jsonl"), "\n \n").unwrap();
    assert_refused(
        "longbench",
        dir.path(),
        &[],
        &["qasper.jsonl: there is no row; expected a case"],
    );
}

#[test]
fn errors_of_missing_names_and_files_list_the_expected() {
    let dir =
        folder(&[("qasper_e.jsonl", &[json!({ "context": "", "input": "", "answers": ["a"] })])]);
    assert_refused(
        "long",
        dir.path(),
        &[],
        &["`long`", "ruler, babilong, loogle, infinitebench, zero-scrolls, math500, aime2024"],
    );
    assert_refused("longbench", dir.path(), &["qa"], &["`qa`", "narrativeqa, qasper, qasper_e"]);
    assert_refused("longbench", dir.path(), &["dureader"], &["dureader is Chinese", "jieba"]);
    assert_refused("longbench", dir.path(), &["trec"], &["expected trec.jsonl or data/trec.jsonl"]);
    assert_refused("ruler", dir.path(), &[], &["expected niah_single_1/validation.jsonl or"]);
    assert_refused("longbench", dir.path(), &[], &["line 1: no column length"]);
}

#[test]
fn items_of_json_arrays_are_rows() {
    let content =
        json!({ "input": "Mary is here.", "question": "Where is Mary?", "target": "garden" });
    let dir = folder(&[("data/qa1/256k.json", &[json!([content, content])])]);
    let benchmark = open("babilong", dir.path(), &[]).unwrap();
    assert_eq!(benchmark.tasks()[0].name(), "qa1_256k");
    let file = dir.path().join("data/qa1/256k.json");
    fs::write(&file, format!("[{content}, 1, {{}}]")).unwrap();
    let expected = ["item 2: it is a number; expected an object", "item 3: no column input"];
    assert_refused("babilong", dir.path(), &[], &expected);
    fs::write(&file, "[{").unwrap();
    assert_refused("babilong", dir.path(), &[], &["expected a JSON array"]);
}

/// Written by pyarrow 26 in `tools/make_metric_golden.py`, with snappy.
const PARQUET: &[u8] = include_bytes!("../golden/rows.parquet");
/// The same rows with other compressions.
const GZIP: &[u8] = include_bytes!("../golden/rows-gzip.parquet");
const ZSTD: &[u8] = include_bytes!("../golden/rows-zstd.parquet");
const LZ4: &[u8] = include_bytes!("../golden/rows-lz4.parquet");

#[test]
fn parquet_has_the_same_rows_in_each_compression() {
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
            let read_case = |benchmark| case(benchmark, task, 10_000, place).unwrap();
            assert_eq!(read_case(&benchmark), read_case(&same));
        }
    }
    fs::write(dir.path().join("trec.parquet"), PARQUET).unwrap();
    assert_refused("longbench", dir.path(), &["trec"], &["row 1: all_classes is null", "row 2: "]);
    fs::write(dir.path().join("lcc.parquet"), LZ4).unwrap();
    let expected =
        ["lcc.parquet: it is compressed with lz4; expected uncompressed, snappy, gzip or zstd"];
    assert_refused("longbench", dir.path(), &["lcc"], &expected);
}

#[test]
fn broken_parquet_files_are_refused() {
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
        assert_refused(
            "longbench",
            dir.path(),
            &[],
            &["hotpotqa.parquet: ", "expected a parquet file"],
        );
    }
}
