//! `vattention perplexity` on the model of `models/recall`.

use std::fs;

use crate::world::{World, number, recall};
use serde_json::{Value, json};

/// Returns valid arguments, followed by `more`.
fn args(more: &str) -> String {
    let model = recall().display().to_string();
    let common = "--text context.txt --pipeline promised.toml --window 400 --text-tokens 1200";
    format!("perplexity --model {model} {common} {more}")
}

#[track_caller]
fn refuse(world: &World, more: &str, expected: &str) {
    world.refuse(&args(more), expected);
}

/// Returns the results without their provenance.
fn results(world: &World) -> Value {
    let mut report = world.json("out.json");
    report.as_object_mut().unwrap().remove("run");
    report
}

#[test]
fn pipelines_are_compared_with_dense_attention() {
    let world = World::new();
    world.write("ends.toml", "name = \"ends\"\n[[selectors]]\ntype = \"sink\"\nsize = 16\n");
    let said = world.succeed(&args("--pipeline dense.toml ends.toml --json out.json"));
    let title = "context.txt: 995 tokens scored in 5 windows of 400 tokens, the first 200 of each \
                 read densely, backend cpu";
    assert!(said.lines().next().unwrap().ends_with(title), "{said}");
    let row = |name: &str| -> Vec<&str> {
        let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().collect()
    };
    let report = world.json("out.json");
    let [promised, dense, ends] = report["pipelines"].as_array().unwrap().as_slice() else {
        panic!("{report}")
    };
    let shown = |key: &str, of: &Value| format!("{:.4}", number(&of[key]));
    let perplexity = shown("dense_perplexity", &report);
    let expected = ["dense", "attention", "-", &perplexity, "-", "-", "-", "-", "-"];
    assert_eq!(row("dense attention"), expected);
    let expected = ["100.0", "%", &perplexity, "+0.0000", "(+0.0000", "to", "+0.0000)"];
    assert_eq!(row("dense  ")[1..8], expected, "dense attention twice");
    assert_eq!((&dense["kl_divergence"], &dense["same_top"]), (&json!(0.0), &json!(1.0)));

    assert_eq!(report["scores"].as_array().unwrap().len(), 5);
    for (place, pipeline) in [promised, dense, ends].into_iter().enumerate() {
        let mean = |logprobs: &dyn Fn(&Value) -> Value| -> f64 {
            let windows = report["scores"].as_array().unwrap().iter().map(logprobs);
            let all: Vec<f64> = windows
                .flat_map(|all| all.as_array().unwrap().clone())
                .map(|x| number(&x))
                .collect();
            assert_eq!(all.len(), 995);
            all.iter().sum::<f64>() / 995.0
        };
        let found = mean(&|window| window["pipelines"][place]["logprobs"].clone());
        let dense = mean(&|window| window["dense"].clone());
        assert!((found - number(&pipeline["log_likelihood"])).abs() < 1e-6);
        assert!((found - dense - number(&pipeline["to_dense"]["mean"])).abs() < 1e-6);
        assert!(((-found).exp() / number(&pipeline["perplexity"]) - 1.0).abs() < 1e-6);
        assert_eq!(pipeline["to_dense"]["blocks"], 5);
    }
    assert!(number(&ends["density"]) < number(&promised["density"]));
    assert!(number(&ends["kl_divergence"]) > number(&promised["kl_divergence"]));
    assert!(number(&promised["held"]) > 0.5 && number(&promised["largest_bar"]) > 0.0);
    assert_eq!((&ends["held"], &ends["largest_bar"]), (&Value::Null, &Value::Null));
    let interval = &ends["to_dense"]["interval"];
    let [mean, low, high] = [&ends["to_dense"]["mean"], &interval["low"], &interval["high"]]
        .map(|it| format!("{:+.4}", number(it)));
    assert_eq!(row("ends")[4..8], [&mean, &format!("({low}"), "to", &format!("{high})")]);
    assert!(said.contains("5 windows are few: the interval relies on normally distributed"));
}

#[test]
fn a_run_continues_from_stored_windows_and_shards_are_merged() {
    let world = World::new();
    let line = args("--json out.json --results");
    let said = world.succeed(&format!("{line} all.jsonl"));
    let (stored, report) = (fs::read_to_string(world.path("all.jsonl")).unwrap(), results(&world));
    assert_eq!(stored.lines().count(), 1 + 5, "a header, and the windows");
    world.write("all.jsonl", &stored[..stored.len() / 2]);
    assert_eq!(world.succeed(&format!("{line} all.jsonl")), said);
    assert_eq!(fs::read_to_string(world.path("all.jsonl")).unwrap(), stored);
    assert_eq!(results(&world), report);

    for shard in ["1/2", "2/2"] {
        let name = shard.replace('/', "-of-");
        world.succeed(&format!("{line} {name}.jsonl --shard {shard}"));
    }
    let merge = "merge 1-of-2.jsonl 2-of-2.jsonl --results both.jsonl --json out.json";
    assert_eq!(world.succeed(merge), said);
    assert_eq!(results(&world), report);

    let other = format!("{line} all.jsonl --dense-prefix 300");
    world.refuse(&other, "all.jsonl");
}

#[test]
fn one_window_has_no_interval() {
    let world = World::new();
    let line = args("--stride 1000 --json out.json").replace("--window 400", "--window 1000");
    let said = world.succeed(&line);
    assert!(said.contains("1 window is too few for an interval"), "{said}");
    let report = world.json("out.json");
    assert_eq!((&report["windows"], &report["scored_tokens"]), (&json!(1), &json!(499)));
    assert_eq!(report["pipelines"][0]["to_dense"]["interval"], Value::Null);
}

/// A text may begin with the token that begins each window.
#[test]
fn the_first_token_is_not_repeated() {
    let world = World::new();
    let text = fs::read_to_string(world.path("context.txt")).unwrap();
    world.write("begun.txt", format!("<bos>{text}"));
    let line = args("--json out.json");
    let said = world.succeed(&line);
    let report = results(&world);
    let again = world.succeed(&line.replace("context.txt", "begun.txt"));
    assert_eq!(again, said.replace("context.txt", "begun.txt"));
    assert_eq!(results(&world), report);
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_reports_the_finished_windows() {
    use crate::world::wait_until_interruptible;
    use std::process::{Command, Stdio};

    let world = World::new();
    let line = args("--json out.json").replace("--text-tokens 1200", "");
    let line = line.replace("--window 400", "--window 20");
    let repeated = fs::read_to_string(world.path("context.txt")).unwrap().repeat(20);
    world.write("context.txt", repeated);
    let mut command = world.command(&line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_interruptible(&mut child);
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = world.json("out.json");
    let [scored, windows] = ["scored_windows", "windows"].map(|key| report[key].as_u64().unwrap());
    assert!(scored >= 1 && scored < windows, "{scored} of {windows}");
    assert!(said.contains(&format!("interrupted after {scored} of {windows} windows")), "{said}");
}

#[test]
fn bad_input_is_refused() {
    let world = World::new();
    world.write("empty.txt", " \n");
    world.write("short.txt", "The grass is green.");
    world.write("typo.toml", "[[selectors]]\ntype = \"sinc\"\n");
    for (more, expected) in [
        ("--pipeline typo.toml", "sinc"),
        ("--pipeline none.toml", "none.toml"),
        ("--backend tpu", "--backend: no `tpu`; expected one of"),
        ("--dense-prefix 399", "--dense-prefix: 399; expected 1 to 398"),
        ("--dense-prefix 0", "--dense-prefix: 0; expected 1 to 398"),
        ("--stride 198", "--stride: 198; expected at least 199"),
        ("--json context.txt", "--json context.txt: expected another file than an input"),
        ("--json no/such/out.json", "no/such/out.json"),
    ] {
        refuse(&world, more, expected);
    }
    let instead = |from: &str, to: &str, expected: &str| {
        world.refuse(&args("").replace(from, to), expected);
    };
    instead("context.txt", "empty.txt", "--text empty.txt: empty; expected a text");
    instead("context.txt", "none.txt", "--text none.txt: No such file");
    instead("context.txt", "short.txt", "--text-tokens: 1200; expected at most the ");
    instead("--text-tokens 1200", "--text-tokens 300", "--text: 300 tokens; expected at least 399");
    let long = "context: the sequence would have 20000 tokens; expected at most ";
    instead("--window 400", "--window 20000", long);
    instead("--window 400", "--window 2", "--window: 2; expected at least 3");
    instead("--pipeline promised.toml", "", "--pipeline <FILE>");
}
