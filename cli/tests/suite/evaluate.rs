//! `vattention evaluate` on the model of `models/recall`.

use std::fs;

use crate::world::{World, expect_code, llama3, recall};
use serde_json::{Value, json};

/// Returns valid arguments, followed by `more`.
fn args(model: &str, more: &str) -> String {
    let common = "--tasks niah_single_1,vt --context 400 --cases 2 \
                  --pipelines dense.toml promised.toml";
    format!("evaluate --model {model} {common} {more}")
}

fn model() -> String {
    recall().display().to_string()
}

#[track_caller]
fn refuse(world: &World, more: &str, expected: &str) {
    world.refuse(&args(&model(), more), expected);
}

#[test]
fn accuracy_density_and_error_are_reported() {
    let world = World::new();
    let said = world.succeed(&args(&model(), "--json out.json --plot out.svg"));
    let title = "setup sparse-question: the context is read densely, 400 tokens, 2 cases of each \
                 task, backend cpu";
    assert!(said.lines().next().unwrap().ends_with(title), "{said}");
    let row = |name: &str, number: usize| -> Vec<String> {
        let mut rows = said.lines().filter(|line| line.trim_start().starts_with(name));
        rows.nth(number).unwrap().split_whitespace().map(str::to_owned).collect()
    };
    // Wilson's interval for four correct answers out of four begins at 1 / (1 + 1.96^2 / 4).
    let interval = ["51.0", "to", "100.0"];
    let dense = row("dense", 0);
    assert_eq!(dense[..4], ["dense", "100.0", "%", "100.0"]);
    assert_eq!(dense[4..7], interval);
    assert_eq!(dense[7..], ["-", "-", "4", "100.0", "100.0"], "no difference to itself");
    let header = row("accuracy", 0);
    assert_eq!(header[3..5], ["read", "mean"]);
    assert_eq!(header[7..], ["to", "dense", "p", "n", "niah_single_1", "vt"]);

    let report = world.json("out.json");
    assert_eq!((&report["setup"], &report["cases"]), (&json!("b"), &json!(2)));
    let get = |i: usize, key: &str| report["variants"][i][key].as_f64().unwrap();
    assert_eq!((get(0, "accuracy"), get(0, "density"), get(0, "error")), (1.0, 1.0, 0.0));
    assert!(get(1, "accuracy") > 0.9 && get(1, "density") < 0.9 && get(1, "error") > 0.0);
    assert_eq!(report["variants"][0]["violations"], Value::Null);
    assert_eq!(report["variants"][0]["to_dense"], json!([]));
    let difference = &report["variants"][1]["to_dense"][0];
    let [mean, low, high] = ["mean", "low", "high"].map(|key| difference[key].as_f64().unwrap());
    assert!((mean - (get(1, "accuracy") - 1.0)).abs() < 1e-12);
    assert!(low < mean && mean < high, "four cases prove no equality: {low} {high}");
    let [mean, low, high] = [mean, low, high].map(|share| format!("{:+.1}", 100.0 * share));
    let printed = [mean, format!("({low}"), "to".into(), format!("{high})")];
    assert_eq!(row("promised", 0)[7..11], printed);
    let promised = &report["variants"][1];
    let [violated, rows] =
        ["violated", "checked"].map(|key| promised["violations"][key].as_f64().unwrap());
    assert!(violated < 0.2 * rows && rows == get(1, "rows"));
    assert_eq!(promised["evidence"], "within-delta");
    assert_eq!(report["records"].as_array().unwrap().len(), 8);
    let read = format!("{:.1}", 100.0 * get(1, "density"));
    assert_eq!(row("promised", 0)[1], read);
    let cells = row("promised", 1);
    let share = format!("{:.2}", 100.0 * violated / rows);
    let rows = rows.to_string();
    // The first cells are the error, its bar, and the share of rows outside their bars.
    assert_eq!((cells[5].parse::<f64>().is_ok(), cells[6].as_str()), (true, "%"), "{cells:?}");
    assert_eq!(cells[7..9], ["within", "delta"], "the bars");
    assert_eq!(cells[9..], [&share, "%", "20.00", "%", "within", "delta", &rows, "rows"]);

    let svg = fs::read_to_string(world.path("out.svg")).unwrap();
    assert!(svg.contains("promised") && svg.contains("accuracy"), "{svg}");
    assert!(svg.contains("setup sparse-question"), "{svg}");
}

#[test]
fn a_run_continues_from_stored_answers() {
    let world = World::new();
    let line = args(&model(), "--results kept.jsonl --no-errors --setup dense-prompt");
    let said = world.succeed(&line);
    assert!(said.contains("setup dense-prompt: the prompt is read densely"), "{said}");
    let kept = fs::read_to_string(world.path("kept.jsonl")).unwrap();
    assert_eq!(kept.lines().count(), 8);
    world.write("kept.jsonl", &kept[..kept.len() / 2]);
    assert_eq!(world.succeed(&line), said);
    assert_eq!(fs::read_to_string(world.path("kept.jsonl")).unwrap(), kept);
}

/// Returns the file of a SampleAttention strategy with this coverage.
fn sample_attention(coverage: &str) -> String {
    format!("strategy = \"sample-attention\"\nwindow = 0.02\ncoverage = {coverage}\n")
}

/// Some pipelines have selectors that use the prompt's last queries.
#[test]
fn a_prefill_strategy_reads_the_prompt() {
    let world = World::new();
    for (name, coverage) in [("all.toml", "1.0"), ("some.toml", "0.3"), ("less.toml", "0.29")] {
        world.write(name, sample_attention(coverage));
    }
    world.write("nothing-new.toml", "strategy = \"dense\"\n");
    world.write("h2o.toml", "[[selectors]]\ntype = \"h2o\"\nheavy = 40\nrecent = 40\n");
    world.write("snapkv.toml", "[[selectors]]\ntype = \"snapkv\"\nsize = 80\n");
    let lines = || fs::read_to_string(world.path("kept.jsonl")).unwrap().lines().count();
    let evaluate = |prefill: &str| {
        let more = "--pipelines h2o.toml snapkv.toml --results kept.jsonl --json out.json";
        let said = world.succeed(&args(&model(), &format!("{more} {prefill}")));
        let mut report = world.json("out.json");
        report.as_object_mut().unwrap().remove("run");
        (said, report, lines())
    };
    let digests = |report: &Value| -> Vec<String> {
        let records = report["records"].as_array().unwrap().iter();
        records.map(|record| record["digest"].as_str().unwrap().to_owned()).collect()
    };
    let (said, dense, count) = evaluate("");
    assert_eq!((&dense["prefill"], count), (&json!({"strategy": "dense", "density": 1.0}), 16));
    assert!(!said.contains("prefill:"), "{said}");

    let (same, report, count) = evaluate("--prefill nothing-new.toml");
    assert!(same == said && report == dense && count == 16, "{same}");

    let (all, mut report, count) = evaluate("--prefill all.toml");
    assert!(all.contains("\nprefill: 100.0 % of the causal token-key pairs"), "{all}");
    assert_eq!(all.lines().skip(4).collect::<Vec<_>>(), said.lines().skip(2).collect::<Vec<_>>());
    assert_eq!(count, 32);
    assert!(digests(&report).iter().all(|digest| !digests(&dense).contains(digest)));
    let all = json!({
        "strategy": "sample-attention",
        "sample": 0.05,
        "coverage": 1.0,
        "window": 0.02,
        "density": 1.0,
    });
    assert_eq!(report["prefill"], all);
    report["prefill"] = dense["prefill"].clone();
    let records = report["records"].as_array_mut().unwrap();
    for (record, dense_record) in records.iter_mut().zip(dense["records"].as_array().unwrap()) {
        assert_eq!(record.as_object_mut().unwrap().remove("prefill_density"), Some(json!(1.0)));
        record["digest"] = dense_record["digest"].clone();
    }
    assert_eq!(report, dense, "a strategy that reads all pairs is dense");

    let (some, report, count) = evaluate("--setup a --prefill some.toml --plot out.svg");
    let title = "setup dense-prompt: the prompt is read by sample-attention (sample 0.05, coverage \
                 0.3, window 0.02), 400 tokens";
    assert!(some.lines().next().unwrap().contains(title) && count == 48, "{some}");
    let density = report["prefill"]["density"].as_f64().unwrap();
    assert!((0.02..0.5).contains(&density), "{density}");
    assert!(
        some.contains(&format!(
            "\nprefill: {:.1} % of the causal token-key pairs",
            100.0 * density
        ))
    );
    assert!(fs::read_to_string(world.path("out.svg")).unwrap().contains("coverage 0.3"));
    let (_, context_alone, count) = evaluate("--prefill some.toml");
    assert_eq!(count, 64);
    assert_ne!(context_alone["prefill"]["density"], density);
    let (_, less, count) = evaluate("--prefill less.toml");
    assert_eq!(count, 80, "strategies do not share stored answers");
    assert!(digests(&less).iter().all(|digest| !digests(&context_alone).contains(digest)));
    assert_eq!(evaluate("--prefill some.toml").1, context_alone);
    assert_eq!(evaluate(""), (said, dense, 80));
}

#[test]
fn bad_strategies_are_refused() {
    let world = World::new();
    let refused = |text: &str, expected: &str| {
        world.write("wrong.toml", text);
        refuse(&world, "--prefill wrong.toml", expected);
    };
    refused("strategy = \"sample-attention\"\nalpha = 0.9\n", "unknown field `alpha`");
    refused("strategy = \"flex\"\n", "wrong.toml: TOML parse error at line 1");
    refused("name = \"dense\"\n", "missing field `strategy`");
    refused(&sample_attention("1.5"), "wrong.toml: TOML parse error at line 3");
    world.write("some.toml", sample_attention("0.3"));
    for (options, expected) in [
        ("none.toml", "none.toml: No such file"),
        (".", ".: Is a directory"),
        ("some.toml --json some.toml", "--json some.toml: expected another file than an input"),
        ("some.toml --results some.toml", "some.toml, line 1: "),
        ("some.toml --prefill some.toml", "cannot be used multiple times"),
    ] {
        refuse(&world, &format!("--prefill {options}"), expected);
    }
}

#[test]
fn densities_are_reached_by_sizes() {
    let world = World::new();
    let edges = "[[selectors]]\ntype = \"sink\"\nsize = 8\n";
    let best = "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 9\n";
    world.write("best.toml", format!("name = \"best\"\n{edges}{best}"));
    world.write("plain.toml", format!("name = \"plain\"\n{edges}{best}"));
    let more = "--density 0.2,0.5 --pipelines best.toml --json out.json --as-they-stand plain.toml";
    let said = world.succeed(&args(&model(), more).replace(" promised.toml", ""));
    assert!(said.contains("best, 20 %") && said.contains("size 0."), "{said}");
    let variants = &world.json("out.json")["variants"];
    let names = variants.as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|variant| variant["variant"].as_str().unwrap()).collect();
    assert_eq!(names, ["dense", "best, 20 %", "best, 50 %", "plain"]);
    for (i, expected) in [(1, 0.2), (2, 0.5)] {
        let density = variants[i]["density"].as_f64().unwrap();
        assert!((density / expected).ln().abs() < 0.1, "{density} for {expected}");
    }
}

#[test]
fn bad_input_is_refused() {
    let world = World::new();
    let twice = "--density 0.2 --as-they-stand dense.toml";
    for (options, expected) in [
        ("--tasks niah", "--tasks: there is no task `niah`; expected one of ruler"),
        ("--tasks cwe", "the vocabulary has no words for `cwe`"),
        ("--context 20", "does not fit in"),
        ("--context 20000", "expected at most `max_position_embeddings` = 16384"),
        ("--cases 0", "--cases"),
        ("--context 256,300,256", "--context: 256 is given twice"),
        ("--setup c", "possible values: dense-prompt, sparse-question"),
        ("--density 2", "--density"),
        (twice, "--as-they-stand: dense.toml: it is among the pipelines"),
        ("--as-they-stand dense.toml", "--density"),
        ("--pipelines none.toml", "none.toml"),
        ("--vocabulary dense.toml", "dense.toml"),
        ("--squad none.json", "none.json: No such file"),
        ("--json dense.toml", "--json dense.toml: expected another file"),
        ("--results context.txt", "context.txt, line 1: "),
    ] {
        refuse(&world, options, expected);
    }
    let golden = llama3().display().to_string();
    world.refuse(&args(&golden, ""), "llama3/tokenizer.json: No such file");
    let nowhere = "--model nowhere: no such file or folder; expected a folder";
    world.refuse(&args("nowhere", ""), nowhere);
}

/// Pipelines are checked before a text is made, and the other pipelines run.
#[test]
fn pipelines_that_cannot_run_are_left_out() {
    let world = World::new();
    world.write("edges.toml", "name = \"edges\"\n[[selectors]]\ntype = \"sink\"\nsize = 4\n");
    let rank = "[[selectors]]\ntype = \"double-sparsity\"\nsize = 4\nchannels = 65\n";
    world.write("channels.json", "{\"model.layers.0.self_attn.qk_proj\": []}");
    world.write("wide.toml", format!("{rank}calibration = \"channels.json\"\n"));
    let files = "--pipelines wide.toml edges.toml --density 0.1 --json out.json";
    let line = args(&model(), files).replace(" promised.toml", "");
    let said = expect_code(&world.run(&line), 0);
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "note: left out: wide.toml: on layer 0: double-sparsity: `channels` is 65",
        "note: left out: edges.toml: density: edges: has no size to set",
    ];
    assert!(
        lines.len() == 2 && lines.iter().zip(expected).all(|(a, b)| a.starts_with(b)),
        "{said}"
    );
    let report = world.json("out.json");
    assert_eq!(report["left_out"][0]["file"], "wide.toml");
    assert_eq!(report["variants"].as_array().unwrap().len(), 1);
    // The context is too small for a text, but texts are made later.
    let small = line.replace("dense.toml", "wide.toml").replace("edges.toml", "wide.toml");
    let small = small.replace("--context 400", "--context 20");
    world.refuse(&small, "error: wide.toml: on layer 0: double-sparsity: `channels` is 65");
}

#[test]
fn models_without_a_vocabulary_use_words_like_rulers() {
    let world = World::new();
    world.copy_model(&recall(), "other", json!({}));
    fs::remove_file(world.path("other/vocabulary.json")).unwrap();
    let said = world.succeed(&args("other", "--tasks niah_single_2 --no-errors"));
    assert!(said.contains("niah_single_2"), "{said}");
    world.write("prose.txt", "The sky is blue. The sun is yellow.");
    let more = "--tasks niah_single_2 --no-errors --haystack prose.txt";
    world.succeed(&args("other", more));
}
