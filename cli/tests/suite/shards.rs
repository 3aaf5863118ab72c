//! Work that is split into shards, interrupted, and joined.

use std::fs;

use serde_json::Value;

use crate::world::{World, read_stderr, recall};

/// Returns a world with `a.trace` of three layers, and `b.trace` with other numbers.
fn world() -> World {
    let world = World::new();
    for (seed, name) in [("1", "a.trace"), ("2", "b.trace")] {
        let shape = "--query-heads 4 --kv-heads 2 --head-dim 32 --layers 3 --tokens 1200";
        world.succeed(&format!("synth --kind typical {shape} --queries 3 --seed {seed} -o {name}"));
    }
    world
}

/// Runs the command, and returns the exit code, standard output and standard error.
fn run(world: &World, args: &str) -> (i32, String, String) {
    let output = world.run(args);
    let said = read_stderr(&output);
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap(), said)
}

/// Runs `n` shards of a command, from the last to the first, and returns their files.
fn shards(world: &World, command: &str, n: usize) -> Vec<String> {
    let all = (1..=n).rev().map(|number| {
        let file = format!("{number}of{n}.jsonl");
        let shard = format!("{number}/{n}");
        let said = world.succeed(&format!("{command} --results {file} --shard {shard}"));
        let report = format!("shard {shard} is done and stored in {file}\n");
        assert!(said.starts_with(&report), "{said}");
        file
    });
    all.collect()
}

/// Removes the results of the previous command.
fn clear(world: &World) {
    for file in world.files() {
        if file.strip_suffix(".jsonl").is_some_and(|name| name.contains("of")) {
            fs::remove_file(world.path(&file)).unwrap();
        }
    }
}

fn merge(world: &World, files: &[String], more: &str) -> (i32, String, String) {
    let _ = fs::remove_file(world.path("all.jsonl"));
    run(world, &format!("merge {} --results all.jsonl {more}", files.join(" ")))
}

/// Returns the lines of a JSON file without measured times.
fn untimed(world: &World, name: &str) -> String {
    let text = fs::read_to_string(world.path(name)).unwrap();
    text.lines().filter(|line| !line.contains("\"seconds\":")).collect::<Vec<_>>().join("\n")
}

/// Expects that shards of a command give the numbers, the table and the plot of a single run. With
/// `most` shards, some have no work. Every other shard's file is cut and completed by a second run,
/// and one file is merged twice.
#[track_caller]
fn expect_same(world: &World, command: &str, most: usize, plotted: bool) {
    clear(world);
    let outputs = |name: &str| {
        let plot = if plotted { format!("--plot {name}.svg") } else { String::new() };
        format!("--json {name}.json {plot}")
    };
    let (code, table, said) = run(world, &format!("{command} {}", outputs("one")));
    assert_ne!(code, 2, "{command}: {said}");
    for n in [1, 3, most] {
        let mut files = shards(world, command, n);
        for (i, file) in files.iter().enumerate().step_by(2) {
            let path = world.path(file);
            let text = fs::read_to_string(&path).unwrap();
            let cut = (20 * (i + 1)).min(text.len() / 2);
            fs::write(&path, &text[..text.len() - cut]).unwrap();
        }
        let again = shards(world, command, n);
        assert_eq!(files, again);
        let twice = fs::read(world.path(&files[0])).unwrap();
        world.write("twice.jsonl", twice);
        files.insert(n / 2, "twice.jsonl".into());
        let merged = merge(world, &files, &outputs("all"));
        assert_eq!(merged, (code, table.clone(), said.clone()), "{command}, {n} shards");
        assert_eq!(untimed(world, "all.json"), untimed(world, "one.json"), "{command}, {n} shards");
        if plotted {
            let plots = ["all.svg", "one.svg"].map(|name| fs::read(world.path(name)).unwrap());
            assert_eq!(plots[0], plots[1], "{command}, {n} shards");
        }
    }
}

#[test]
fn a_comparison() {
    expect_same(&world(), "compare dense.toml promised.toml --trace a.trace", 7, true);
}

#[test]
fn a_verification() {
    let world = world();
    world.write(
        "loose.toml",
        crate::world::PROMISED.replace("\"ratio\"", "\"clt\"\ntarget = \"sdpa\""),
    );
    expect_same(&world, "verify promised.toml --trace a.trace --trials 40", 7, false);
    // The promise may be contradicted, and both then end with exit code 1.
    let set = "--set estimator.epsilon=0.01 --set sampler.base=8";
    expect_same(&world, &format!("verify loose.toml --trace a.trace --trials 60 {set}"), 7, false);
}

/// The plot needs other epsilons, which shards compute only if they have the option, too.
#[test]
fn a_verification_with_a_plot() {
    let world = world();
    let command = "verify promised.toml --trace a.trace --trials 40 --heads";
    let one = world.succeed(&format!("{command} --plot one.svg"));
    let files = shards(&world, &format!("{command} --plot any.svg"), 2);
    let (code, all, _) = merge(&world, &files, "--plot all.svg");
    assert_eq!((code, all), (0, one));
    let [one, all] = ["one.svg", "all.svg"].map(|name| fs::read(world.path(name)).unwrap());
    assert!(one == all && !world.path("any.svg").exists());
    let (code, _, said) = merge(&world, &files, "");
    assert!(
        code == 2 && said.contains("is `--plot` and nothing, in the file and in this run"),
        "{said}"
    );
}

#[test]
fn a_dump_of_outputs_and_selections() {
    let world = world();
    let command = "compare promised.toml --trace a.trace";
    world.succeed(&format!("{command} --dump one.safetensors"));
    let files = shards(&world, &format!("{command} --dump any.safetensors"), 2);
    assert_eq!(merge(&world, &files, "--dump all.safetensors").0, 0);
    let read = |name: &str| fs::read(world.path(name)).unwrap();
    assert!(read("one.safetensors") == read("all.safetensors"));
    assert!(!world.path("any.safetensors").exists());
}

#[test]
fn studies() {
    let world = world();
    let on = "--trace a.trace --queries 2";
    for study in ["tightness", "epsilon", "base-sample", "normality", "coverage", "bias"] {
        expect_same(&world, &format!("study {study} {on} --trials 3"), 13, true);
    }
}

#[test]
fn studies_of_pipelines() {
    let world = world();
    let on = "--trace a.trace --layers 0,2 --queries 1";
    expect_same(&world, &format!("study calibration promised.toml {on} --trials 5"), 21, true);
    expect_same(&world, &format!("study pareto dense.toml promised.toml {on}"), 7, true);
    expect_same(&world, &format!("study limit dense.toml promised.toml {on}"), 5, true);
    expect_same(&world, &format!("study sensitivity {on}"), 2, true);
}

/// Returns a command line of `evaluate`.
fn evaluation(more: &str) -> String {
    let model = recall().display().to_string();
    let cases = "--tasks niah_single_1,vt --context 300 --cases 2";
    format!("evaluate --model {model} --pipelines dense.toml promised.toml {cases}{more}")
}

#[test]
fn an_evaluation() {
    expect_same(&World::new(), &evaluation(""), 5, true);
}

#[test]
fn an_evaluation_with_a_prefill_strategy() {
    let world = World::new();
    let strategy = "strategy = \"sample-attention\"\nwindow = 0.02\ncoverage = 0.3\n";
    world.write("some.toml", strategy);
    let command = evaluation(" --prefill some.toml");
    expect_same(&world, &command, 5, true);
    clear(&world);
    let files = shards(&world, &command, 2);
    assert_eq!(merge(&world, &files, "").0, 0);
    world.write("some.toml", strategy.replace("0.3", "0.4"));
    let (code, _, said) = merge(&world, &files, "");
    assert!(code == 2 && said.contains("the digest of some.toml is"), "{said}");
}

/// A model is identified by its bytes, and not by the times of its files.
#[test]
fn answers_of_another_model_are_refused() {
    let world = World::new();
    world.copy_model(&recall(), "model", serde_json::json!({}));
    let command = evaluation("").replace(&recall().display().to_string(), "model");
    let files = shards(&world, &command, 2);
    let weights = world.path("model/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes).unwrap();
    assert_eq!(merge(&world, &files, "").0, 0);
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    let (code, _, said) = merge(&world, &files, "");
    assert!(code == 2 && said.contains("the digest of the model is"), "{said}");
}

/// The first stage searches densities, and the second one measures the pipelines that were found.
#[test]
fn work_in_two_stages() {
    let world = world();
    let compared = "compare dense.toml promised.toml --trace a.trace --density 0.2,0.4".to_owned();
    // The evaluation has a single search. The shard that runs it continues with the second stage.
    let evaluated = evaluation(" --density 0.3");
    for (command, count, missing) in [(compared, "9 of 9", "1-3"), (evaluated, "4 of 8", "2-3")] {
        clear(&world);
        let single = run(&world, &format!("{command} --json one.json"));
        let files = shards(&world, &command, 3);
        let (code, _, said) = merge(&world, &files, "--json all.json");
        assert_eq!(code, 1, "{command}: {said}");
        let expected = format!("incomplete: {count} results are missing, of shards {missing}");
        assert!(said.contains(&expected), "{said}");
        assert!(
            said.contains("run these shards again, each with --results on a copy of all.jsonl"),
            "{said}"
        );
        let joined = fs::read(world.path("all.jsonl")).unwrap();
        for file in &files {
            fs::write(world.path(file), &joined).unwrap();
        }
        assert_eq!(shards(&world, &command, 3), files);
        assert_eq!(merge(&world, &files, "--json all.json"), single, "{command}");
        assert_eq!(untimed(&world, "all.json"), untimed(&world, "one.json"), "{command}");
    }
}

#[test]
fn missing_results_are_reported() {
    let world = world();
    let compared = "compare dense.toml promised.toml --trace a.trace".to_owned();
    for (command, count, unit) in [
        (compared, "4 of 6", "layer 1, pipeline 1 (dense)"),
        (evaluation(""), "4 of 8", "niah_single_1, 300 tokens, case 1, dense"),
        ("verify promised.toml --trace a.trace --trials 40".into(), "4 of 6", "layer 1, KV head 0"),
        ("study bias --trace a.trace --trials 3".into(), "12 of 18", "layer 1, KV head 0, query 0"),
    ] {
        clear(&world);
        let files = shards(&world, &command, 3);
        let first_shard = &files[files.len() - 1..];
        let (code, table, said) = merge(&world, first_shard, "--json all.json");
        assert_eq!((code, table.as_str()), (1, ""), "{command}");
        let expected = format!("incomplete: {count} results are missing, of shards 2");
        assert!(said.contains(&expected) && said.contains(unit), "{command}: {said}");
        assert!(!world.path("all.json").exists());
        // The existing results were joined, so that the others can be added.
        fs::rename(world.path("all.jsonl"), world.path("some.jsonl")).unwrap();
        let rest = [&["some.jsonl".to_owned()], &files[..2]].concat();
        assert_eq!(merge(&world, &rest, "").0, 0, "{command}");
    }
}

#[test]
fn an_interrupted_run_continues() {
    let world = world();
    for command in [
        "compare promised.toml --trace a.trace --density 0.3",
        "verify promised.toml --trace a.trace --trials 40",
        "study coverage --trace a.trace --trials 3",
    ] {
        let _ = fs::remove_file(world.path("kept.jsonl"));
        let args = format!("{command} --results kept.jsonl");
        let first = world.succeed(&args);
        let text = fs::read_to_string(world.path("kept.jsonl")).unwrap();
        let half = text.len() / 2;
        fs::write(world.path("kept.jsonl"), &text[..half]).unwrap();
        assert_eq!(world.succeed(&args), first, "{command}");
        let now = fs::read_to_string(world.path("kept.jsonl")).unwrap();
        let lines = |text: &str| text.lines().count();
        assert_eq!(lines(&now), lines(&text), "{command}");
        // Stored results are not computed again.
        let whole = text[..half].rfind('\n').unwrap();
        assert_eq!(now[..whole], text[..whole], "{command}");
    }
    let said = run(&world, "compare dense.toml --trace a.trace --results kept.jsonl").2;
    assert!(said.contains("kept.jsonl, line 1: argument 1 is `study` and `compare`"), "{said}");
}

#[test]
fn results_of_different_work_are_refused() {
    let world = world();
    let command = "compare promised.toml --trace a.trace";
    let files = shards(&world, command, 2);
    let refuse_other = |change: &dyn Fn(), command: &str, shard: &str| {
        change();
        let _ = fs::remove_file(world.path("other.jsonl"));
        world.succeed(&format!("{command} --results other.jsonl --shard {shard}"));
        let (code, table, said) = merge(&world, &[files[0].clone(), "other.jsonl".into()], "");
        assert_eq!((code, table.as_str()), (2, ""), "{said}");
        assert!(said.contains(&format!("in {} and here", files[0])), "{said}");
        assert!(said.contains("other.jsonl, line 1: "), "{said}");
        assert!(!world.path("all.jsonl").exists());
        said
    };
    let same = || ();
    assert!(refuse_other(&same, command, "1/3").contains("the number of shards is 2 and 3"));
    let said = refuse_other(&same, "compare promised.toml --trace b.trace", "1/2");
    assert!(said.contains("argument 4 is `a.trace` and `b.trace`"), "{said}");
    let said = refuse_other(&same, &format!("{command} --set seed=7"), "1/2");
    assert!(said.contains("argument 5 is nothing and `--set`"), "{said}");
    let [a, b] = ["a.trace", "b.trace"].map(|name| fs::read(world.path(name)).unwrap());
    let said = refuse_other(&|| world.write("a.trace", &b), command, "1/2");
    assert!(said.contains("the digest of the trace is"), "{said}");
    let changed = || {
        world.write("a.trace", &a);
        world.write("promised.toml", crate::world::PROMISED.replace("size = 64", "size = 65"));
    };
    let said = refuse_other(&changed, command, "1/2");
    assert!(said.contains("the digest of pipeline 1 (promised.toml) is"), "{said}");
    // Results cannot be merged if the pipeline's file has changed since.
    let (code, _, said) = merge(&world, &files, "");
    assert!(code == 2 && said.contains("the digest of pipeline 1 (promised.toml) is"), "{said}");
    world.write("promised.toml", crate::world::PROMISED);
    assert_eq!(merge(&world, &files, "").0, 0);

    let text = fs::read_to_string(world.path(&files[1])).unwrap();
    let refused = |text: &str, expected: &str| {
        world.write("other.jsonl", text);
        let (code, _, said) = merge(&world, &[files[0].clone(), "other.jsonl".into()], "");
        assert!(code == 2 && said.contains(expected), "{said}");
        assert!(!world.path("all.jsonl").exists());
    };
    let version = "{\"vattention\":\"";
    refused(&text.replacen(version, &format!("{version}9"), 1), "the version is");
    let malformed = text.replacen("{\"unit\":\"", "{\"unit\" \"", 1);
    refused(&malformed, "other.jsonl, line 2: expected `:`");
    refused("a note\n", "other.jsonl, line 1: expected a header");
    let (_, rest) = text.split_once("\"errors\":[[").unwrap();
    let number = rest.split(',').next().unwrap();
    world.write("twice.jsonl", text.replacen(number, "0.5", 1));
    let (code, _, said) = merge(&world, &[files[1].clone(), "twice.jsonl".into()], "");
    assert_eq!(code, 2);
    let unit = "twice.jsonl, line 2: unit `layer 0, pipeline 1 (promised)` has another result";
    assert!(said.contains(unit), "{said}");
    let over = format!("merge {} --results {}", files[0], files[0]);
    world.refuse(&over, "expected another file");
}

#[test]
fn bad_shards_are_refused() {
    let world = world();
    for bad in ["0/3", "4/3", "x", "1/0"] {
        for command in [
            "compare dense.toml --trace a.trace --results a.jsonl",
            "capture --model model --text a.txt -o out",
        ] {
            let expected = "expected i/n with i from 1 to n, as 2/3";
            world.refuse(&format!("{command} --shard {bad}"), expected);
        }
    }
    world.refuse("compare dense.toml --trace a.trace --shard 1/3", "--results");
    world.refuse("evaluate --model m --pipelines a --tasks vt --shard 1/3", "--results");
    // Two tasks of an array cannot share a file.
    let command = "compare dense.toml --trace a.trace --results a.jsonl --shard";
    world.succeed(&format!("{command} 1/3"));
    let expected = "a.jsonl, line 1: results of shard 1/3; expected those of 2/3";
    world.refuse(&format!("{command} 2/3"), expected);
    world.refuse("merge nothing.jsonl --results all.jsonl", "nothing.jsonl");
}

#[test]
fn tasks_of_a_slurm_array_are_shards() {
    let world = world();
    let task = |id: &str, count: &str, most: &str, more: &str| {
        let mut run = world.command(&format!("compare dense.toml --trace a.trace {more}"));
        run.env("SLURM_ARRAY_TASK_ID", id).env("SLURM_ARRAY_TASK_COUNT", count);
        run.env("SLURM_ARRAY_TASK_MIN", "4").env("SLURM_ARRAY_TASK_MAX", most);
        let output = run.output().unwrap();
        let said = read_stderr(&output);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap(), said)
    };
    for (id, shard) in [("4", "1/2"), ("5", "2/2")] {
        let file = format!("{id}.jsonl");
        let (code, report, said) = task(id, "2", "5", &format!("--results {file}"));
        assert!(code == 0 && report.starts_with(&format!("shard {shard} is done")), "{report}");
        assert!(
            said.starts_with(&format!("note: --shard {shard}, from SLURM_ARRAY_TASK_ID {id}")),
            "{said}"
        );
    }
    let files = ["4.jsonl", "5.jsonl"].map(str::to_owned);
    let (code, merged, _) = merge(&world, &files, "");
    // `--shard` has precedence over the array; without `--results`, a task does all of the work.
    let (_, report, said) = task("4", "2", "5", "--results single.jsonl --shard 1/1");
    assert!(report.starts_with("shard 1/1 is done") && said.is_empty(), "{report}{said}");
    let (_, single, said) = task("4", "2", "5", "");
    assert_eq!((code, merged, said.as_str()), (0, single, ""));
    for (id, count, most) in [("3", "2", "5"), ("x", "2", "5"), ("6", "2", "6"), ("4", "2", "6")] {
        let (code, _, said) = task(id, count, most, "--results c.jsonl");
        assert!(code == 2 && said.contains("expected a task of an array without gaps"), "{said}");
        assert!(!world.path("c.jsonl").exists());
    }
}

#[test]
fn a_trace_is_captured_in_shards() {
    let world = World::new();
    let model = recall().display().to_string();
    let command = format!("capture --model {model} --text context.txt --tokens 300 -o");
    world.succeed(&format!("{command} whole.trace"));
    let whole = fs::read(world.path("whole.trace")).unwrap();
    let capture = |command: &str, shard: &str| {
        let file = format!("{}.trace", shard.replace('/', "of"));
        let said = world.succeed(&format!("{command} {file} --shard {shard}"));
        assert!(said.starts_with(&format!("wrote shard {shard} to {file}\n")), "{said}");
        file
    };
    let join = |files: &[String]| {
        let _ = fs::remove_file(world.path("all.trace"));
        run(&world, &format!("merge {} --results all.trace", files.join(" ")))
    };
    let mut files = Vec::new();
    for n in [1, 2, 40] {
        let shards = (1..=n).rev().map(|i| capture(&command, &format!("{i}/{n}")));
        files = shards.collect::<Vec<_>>();
        files.push(files[0].clone());
        assert_eq!(join(&files), (0, "wrote all.trace\n".into(), String::new()));
        assert!(fs::read(world.path("all.trace")).unwrap() == whole, "{n} shards");
    }
    // A shard with a layer is missing, and can be added to the other shards later.
    let number = files.iter().position(|file| layers(&world, file) > 0).unwrap();
    let missing = files.remove(number);
    files.retain(|file| *file != missing);
    let (code, _, said) = join(&files);
    assert!(code == 1 && said.contains("incomplete: 1 of "), "{said}");
    fs::rename(world.path("all.trace"), world.path("some.trace")).unwrap();
    assert_eq!(join(&["some.trace".into(), missing.clone()]).0, 0);
    assert!(fs::read(world.path("all.trace")).unwrap() == whole);

    let refused = |files: &[&str], expected: &str| {
        let files: Vec<String> = files.iter().map(|&file| file.into()).collect();
        let (code, _, said) = join(&files);
        assert!(code == 2 && said.contains(expected), "{said}");
        assert!(!world.path("all.trace").exists());
    };
    let expected = "whole.trace: expected a trace from `vattention capture --shard`";
    refused(&["whole.trace"], expected);
    let other = capture(&command.replace("300", "299"), "2/3");
    refused(&[&missing, &other], "is `300` and `299`");
    let text = fs::read_to_string(world.path("context.txt")).unwrap();
    world.write("context.txt", text.replace("sky", "sea"));
    let other = capture(&command, "2/40");
    refused(&[&missing, &other], "the digest of the text is");
    let bytes = fs::read(world.path(&missing)).unwrap();
    fs::write(world.path(&missing), &bytes[..bytes.len() - 1]).unwrap();
    refused(&[&missing], "not a whole safetensors file");
}

/// Returns the number of layers of a shard of a trace.
fn layers(world: &World, file: &str) -> usize {
    let bytes = fs::read(world.path(file)).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let keys = header.as_object().unwrap().keys();
    keys.filter(|key| key.rsplit('.').next() == Some("keys")).count()
}
