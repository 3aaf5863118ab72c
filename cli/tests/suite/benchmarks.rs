//! `vattention evaluate --benchmark` on the model of `models/recall`.

use std::fs;

use serde_json::json;

use crate::world::{World, recall, root};

/// Returns arguments for a benchmark of `data/benchmarks`, or of a folder of the world.
fn args(benchmark: &str, files: &str, more: &str) -> String {
    let model = recall().display().to_string();
    let shipped = root("data/benchmarks").join(files);
    let files = if shipped.exists() { shipped.display().to_string() } else { files.to_owned() };
    let pipelines = "--pipelines dense.toml promised.toml";
    format!("evaluate --model {model} {pipelines} --benchmark {benchmark} --files {files} {more}")
}

#[track_caller]
fn succeed(world: &World, benchmark: &str, files: &str, more: &str) -> String {
    world.succeed(&args(benchmark, files, more))
}

#[track_caller]
fn refuse(world: &World, benchmark: &str, files: &str, more: &str, expected: &str) {
    world.refuse(&args(benchmark, files, more), expected);
}

#[test]
fn files_of_ruler_are_evaluated() {
    let world = World::new();
    let more = "--datasets niah_single_1 --context 600 --json out.json";
    let said = succeed(&world, "ruler", "ruler", more);
    assert!(said.lines().any(|line| line.trim_end().ends_with("niah_single_1")), "{said}");
    let report = world.json("out.json");
    assert_eq!(report["tasks"], json!(["niah_single_1"]));
    assert_eq!(report["records"].as_array().unwrap().len(), 4, "two rows, two pipelines");
    assert_eq!(report["variants"][0]["accuracy"], json!(1.0));
    assert_eq!(report["variants"][0]["scores"][0]["cases"], json!(2));
}

#[test]
fn groups_of_lengths_are_separate_tasks_and_answers_are_stored() {
    let world = World::new();
    let more = "--datasets qasper_e,hotpotqa --context 300 --results kept.jsonl --json out.json \
                --no-errors";
    let said = succeed(&world, "longbench", "longbench", more);
    let report = world.json("out.json");
    let tasks = json!(["qasper_e:0-4k", "qasper_e:4-8k", "qasper_e:8k+", "hotpotqa"]);
    assert_eq!(report["tasks"], tasks);
    let cases: Vec<_> =
        report["variants"][1]["scores"].as_array().unwrap().iter().map(|it| &it["cases"]).collect();
    assert_eq!(cases, [1, 1, 1, 2]);
    let kept = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), 10);
    assert_eq!(succeed(&world, "longbench", "longbench", more), said);
    let again = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(again, kept, "no case is evaluated again");
}

#[test]
fn every_benchmark_can_be_evaluated() {
    let world = World::new();
    for (benchmark, files, context) in [
        ("longbench", "longbench", "700"),
        ("longbench-v2", "longbench-v2", "700"),
        ("ruler", "ruler", "700"),
        ("babilong", "babilong", "700"),
        ("loogle", "loogle", "700"),
        ("infinitebench", "infinitebench", "1300"),
        // The answer to gov_report takes up to 1024 tokens.
        ("zero-scrolls", "zero-scrolls", "1300"),
        ("math500", "math", "120"),
        ("aime2024", "math", "120"),
        ("aime2025", "math", "120"),
        ("aime2026", "math", "120"),
    ] {
        let more = format!("--context {context} --cases 1 --no-errors --json out.json");
        succeed(&world, benchmark, files, &more);
        let report = world.json("out.json");
        let tasks = report["tasks"].as_array().unwrap().len();
        assert_eq!(report["records"].as_array().unwrap().len(), 2 * tasks, "{benchmark}");
    }
}

/// One answer of `qa1_0k` ends at its first token, so the pipeline takes no step.
#[test]
fn cases_without_a_step_do_not_hide_the_others() {
    let world = World::new();
    let more = "--setup a --datasets qa1_0k,qa6_0k,qa7_0k --json out.json";
    let said = succeed(&world, "babilong", "babilong", more);
    let report = world.json("out.json");
    let promised = &report["variants"][1];
    assert!(promised["cases_without_rows"].as_u64().unwrap() > 0, "{said}");
    assert!(promised["rows"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(promised["violations"]["checked"], promised["rows"]);
    assert!(promised["error"].is_number() && promised["evidence"].is_string(), "{said}");
    assert!(said.contains("no step") && said.contains("prompts of at most "), "{said}");
    let records = report["records"].as_array().unwrap();
    let without = records.iter().filter(|record| record["attention"]["rows"] == 0);
    assert!(without.clone().count() > 0);
    assert!(without.into_iter().all(|record| record["attention"]["density"].is_null()));
}

#[test]
fn wrong_files_and_options_are_refused_before_anything_is_written() {
    let world = World::new();
    fs::create_dir(world.path("files")).unwrap();
    fs::create_dir(world.path("empty")).unwrap();
    world.write("files/hotpotqa.jsonl", "{\"input\": \"a\"}\n{\n");
    world.write("files/lcc.parquet", "PAR1");
    world.write("files/qasper.jsonl", row("a"));
    let secret = json!({ "input": "a", "query_start_index": 1, "output": null });
    world.write("files/quality.jsonl", secret.to_string());
    for (benchmark, files, options, expected) in [
        ("longbench", "files", "--datasets hotpotqa", "line 1: no column context; it has input"),
        ("longbench", "files", "--datasets hotpotqa", "line 2: EOF"),
        ("longbench", "files", "--datasets lcc", "expected a parquet file"),
        ("longbench", "files", "--datasets trec", "expected trec.jsonl"),
        ("longbench", "files", "--datasets vcsum", "vcsum is Chinese"),
        ("longbench", "empty", "", "there is no such file; expected narrativeqa.jsonl"),
        ("leval", "files", "", "expected one of longbench, longbench-v2, ruler, babilong"),
        ("longbench-v2", "files", "", "expected data.jsonl"),
        ("zero-scrolls", "files", "--datasets quality", "line 1: output is null; expected text"),
        ("longbench", "files", "--tasks vt", "cannot be used with"),
        ("longbench", "files", "--datasets qasper --plot files/qasper.jsonl", "files/qasper.jsonl"),
    ] {
        let options = format!("{options} --results kept.jsonl --json out.json");
        refuse(&world, benchmark, files, &options, expected);
    }
    for (options, expected) in [
        ("--benchmark ruler", "--files <DIR>"),
        ("--tasks vt --datasets trec", "--benchmark"),
        ("", "--tasks <TASKS>"),
    ] {
        let without = format!("evaluate --model {} --pipelines dense.toml", recall().display());
        world.refuse(&format!("{without} {options}"), expected);
    }
}

#[test]
fn a_prompt_that_may_not_be_cut_must_fit() {
    let world = World::new();
    let more = "--datasets niah_single_1 --context 100";
    refuse(&world, "ruler", "ruler", more, "`niah_single_1` does not fit in");
}

#[test]
fn other_metrics_of_a_dataset_are_reported() {
    let world = World::new();
    let options = "--context 700 --no-errors --json out.json --results kept.jsonl";
    let more = format!("--datasets shortdep_qa,shortdep_cloze {options}");
    let said = succeed(&world, "loogle", "loogle", &more);
    assert!(said.contains("shortdep_qa, rouge-1-recall"), "{said}");
    assert!(said.contains("shortdep_cloze, cloze-partial"), "{said}");
    let report = world.json("out.json");
    let names = |others: &serde_json::Value| -> Vec<String> {
        let others = others.as_array().unwrap().iter();
        others.map(|other| other["metric"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["rouge-1-recall", "rouge-2-recall", "bleu-1", "bleu-4"];
    assert_eq!(names(&report["variants"][0]["scores"][0]["others"]), expected);
    assert_eq!(names(&report["records"][0]["others"]), expected);
    // Each of the two questions about the text is a case.
    assert_eq!(report["variants"][0]["scores"][0]["cases"], json!(2));
    // For a correct answer, the other metrics are 1, too. The second run uses the stored answer.
    let answer = report["records"][0]["answer"].as_str().unwrap();
    let shipped = fs::read_to_string(root("data/benchmarks/loogle/shortdep_qa.jsonl")).unwrap();
    let mut row: serde_json::Value = serde_json::from_str(&shipped).unwrap();
    row["qa_pairs"] = json!([{ "Q": "Who kept the lamp?", "A": answer }]);
    fs::create_dir(world.path("files")).unwrap();
    world.write("files/shortdep_qa.jsonl", row.to_string());
    for _ in 0..2 {
        succeed(&world, "loogle", "files", options);
        let score = &world.json("out.json")["variants"][0]["scores"][0];
        assert_eq!((&score["accuracy"], &score["others"][0]["score"]), (&json!(1.0), &json!(1.0)));
    }
}

#[test]
fn groups_of_cases_are_reported() {
    let world = World::new();
    let more = "--context 700 --no-errors --json out.json --results kept.jsonl";
    let said = succeed(&world, "longbench-v2", "longbench-v2", more);
    let lines: Vec<&str> = said.lines().collect();
    let title = lines.iter().position(|line| line.contains("by groups of cases in %")).unwrap();
    let names = ["easy", "short", "hard", "medium", "long"];
    let counts = [2, 2, 2, 1, 1];
    for (line, (name, count)) in lines[title + 1..].iter().zip(names.iter().zip(counts)) {
        assert!(line.contains(&format!("longbench-v2, {name} ")), "{said}");
        assert!(line.trim_end().ends_with(&format!(" {count}")), "{said}");
    }
    let report = world.json("out.json");
    for variant in report["variants"].as_array().unwrap() {
        let groups = variant["scores"][0]["groups"].as_array().unwrap();
        let found: Vec<_> = groups.iter().map(|it| (&it["group"], &it["cases"])).collect();
        let expected: Vec<_> = names.iter().map(|name| json!(name)).zip(counts).collect();
        assert!(found.iter().zip(&expected).all(|(a, b)| *a.0 == b.0 && *a.1 == json!(b.1)));
        assert_eq!(found.len(), names.len());
        let share = |place: usize| groups[place]["accuracy"].as_f64().unwrap();
        // Both kinds of groups contain all cases.
        let mean = variant["accuracy"].as_f64().unwrap();
        assert!((0.5 * (share(0) + share(2)) - mean).abs() < 1e-12);
    }
    assert_eq!(report["records"][0]["groups"], json!(["easy", "short"]));
    // Groups are not stored, but read from the files again.
    let kept = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert!(!kept.contains("medium"), "{kept}");
    assert_eq!(succeed(&world, "longbench-v2", "longbench-v2", more), said);
}

#[test]
fn long_documents_are_cut_and_several_answers_are_right() {
    let world = World::new();
    let more = "--datasets narrative_qa,qasper --context 200 --no-errors --json out.json";
    let said = succeed(&world, "zero-scrolls", "zero-scrolls", more);
    assert!(said.lines().any(|line| line.contains("qasper")), "{said}");
    let report = world.json("out.json");
    assert_eq!(report["tasks"], json!(["qasper", "narrative_qa"]));
    // Two lines of qasper have the same prompt.
    let scores = report["variants"][0]["scores"].as_array().unwrap();
    assert!(scores.iter().all(|score| score["cases"] == json!(1)), "{scores:?}");
    let more = "--datasets narrative_qa --context 70";
    refuse(&world, "zero-scrolls", "zero-scrolls", more, "`narrative_qa` does not fit in");
}

/// Returns one line of a file of questions about a text.
fn row(context: &str) -> String {
    format!("{{\"context\": \"{context}\", \"input\": \"b\", \"answers\": [\"c\"]}}\n")
}

/// Shards can be joined only if they read equal files.
#[test]
fn shards_over_other_files_are_refused() {
    let world = World::new();
    fs::create_dir(world.path("files")).unwrap();
    world.write("files/qasper.jsonl", row("a").repeat(2));
    let run_shard = |shard: &str, expected: Option<&str>| {
        let results = shard.replace('/', "-") + ".jsonl";
        let more = format!("--context 200 --no-errors --shard {shard} --results {results}");
        match expected {
            Some(expected) => refuse(&world, "longbench", "files", &more, expected),
            None => drop(succeed(&world, "longbench", "files", &more)),
        }
    };
    run_shard("1/2", None);
    run_shard("2/2", None);
    let header = fs::read_to_string(world.path("1-2.jsonl")).unwrap();
    let header: serde_json::Value = serde_json::from_str(header.lines().next().unwrap()).unwrap();
    assert!(header["inputs"]["files/qasper.jsonl"].is_string(), "{header}");
    world.succeed("merge 1-2.jsonl 2-2.jsonl --results all.jsonl");
    world.write("files/qasper.jsonl", row("other").repeat(2));
    run_shard("1/2", Some("the digest of files/qasper.jsonl is"));
    fs::remove_file(world.path("2-2.jsonl")).unwrap();
    run_shard("2/2", None);
    let merge = "merge 1-2.jsonl 2-2.jsonl --results more.jsonl";
    world.refuse(merge, "the digest of files/qasper.jsonl is");
    // An additional file is reported, too.
    world.write("files/qasper.jsonl", row("a").repeat(2));
    world.write("files/lcc.jsonl", row("a"));
    run_shard("1/2", Some("the digest of files/lcc.jsonl is nothing and"));
    // Without shards, the results have no header, and other files are accepted.
    succeed(&world, "longbench", "files", "--context 200 --no-errors --results kept.jsonl");
    let kept = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert!(kept.lines().all(|line| line.starts_with("{\"digest\"")), "{kept}");
}
