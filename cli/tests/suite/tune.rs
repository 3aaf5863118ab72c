//! `tune`, run as a user runs it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Command, Output};

use crate::world::{list, number, read_json, said};
use serde_json::Value;

fn run_with(threads: &str, line: &[&str]) -> Output {
    let command = env!("CARGO_BIN_EXE_vattention");
    Command::new(command).args(line).env("RAYON_NUM_THREADS", threads).output().unwrap()
}

fn run(line: &[&str]) -> Output {
    run_with("2", line)
}

/// The exit code must be 2, with `expected` in the message.
#[track_caller]
fn refuse(line: &[&str], expected: &str) {
    let output = run(line);
    let said = said(&output);
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{line:?}");
    assert!(said.contains(expected), "{line:?}: {said}");
}

/// A folder with two traces of two layers, and two grids.
struct World {
    folder: tempfile::TempDir,
}

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().unwrap() };
        for seed in ["1", "2"] {
            let line = format!(
                "synth --kind typical --tokens 1024 --query-heads 4 --kv-heads 2 --head-dim 16 \
                 --value-dim 12 --queries 8 --layers 2 --seed {seed} -o {}",
                world.path(&format!("{seed}.safetensors"))
            );
            let made = run(&line.split_whitespace().collect::<Vec<_>>());
            assert_eq!(made.status.code(), Some(0));
        }
        world.write(
            "top.toml",
            "search = true",
            "oracle-top-k",
            "selectors.0.size = [4, 64]\nselectors.1.size = [8, 64]\nselectors.2.score = [\"head\", \"group\"]",
        );
        world.write(
            "quest.toml",
            "",
            "quest",
            "selectors.2.size = [0.02, 0.1, 0.3]\nselectors.2.page = [8, 32]",
        );
        world
    }

    fn write(&self, name: &str, head: &str, base: &str, grid: &str) {
        let text = format!("base = \"{CONFIGS}/{base}.toml\"\n{head}\n[grid]\n{grid}\n");
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// What it prints and finds.
    #[track_caller]
    fn tune(&self, threads: &str, grids: &[&str], more: &[&str]) -> (String, Value) {
        let (trace, json) = (self.path("1.safetensors"), self.path("out.json"));
        let grids: Vec<String> = grids.iter().map(|grid| self.path(grid)).collect();
        let mut line = vec!["tune"];
        line.extend(grids.iter().map(String::as_str));
        line.extend(["--trace", &trace, "--json", &json]);
        line.extend(more);
        let output = run_with(threads, &line);
        let said = said(&output);
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{line:?}");
        let found = read_json(json);
        (String::from_utf8(output.stdout).unwrap(), found)
    }
}

/// What a best entry is about: the candidate that meets the goal, or comes nearest.
fn tried<'a>(found: &'a Value, best: &Value) -> &'a Value {
    let number = best["tried"].as_u64().or(best["nearest"].as_u64());
    &found["tried"][number.unwrap() as usize]
}

/// Methods, goals and what is best there, in the order of their names.
fn bests(found: &Value) -> Vec<String> {
    let one = |best: &Value| {
        let tried = tried(found, best);
        format!(
            "{} {} {} {} {}",
            best["pipeline"], best["goal"], tried["settings"], tried["set"], tried["score"]
        )
    };
    let mut bests: Vec<String> = list(found, "best").iter().map(one).collect();
    bests.sort();
    bests
}

const AT: [&str; 4] = ["--at", "density=0.1,0.2", "--at", "error=0.1"];

#[test]
fn the_best_reads_what_was_asked_and_nothing_that_does_errs_less() {
    let world = World::new();
    let (table, found) =
        world.tune("2", &["top.toml", "quest.toml"], &[&AT[..], &["--rungs", "1"]].concat());
    let all = list(&found, "tried");
    // Searched for two densities and as they stand; six as they stand.
    assert_eq!(all.len(), 8 * 3 + 6);
    assert_eq!(found["queries"], serde_json::json!([8]));
    let best = list(&found, "best");
    assert_eq!(best.len(), 6, "two methods, three goals");
    let mut unmet = 0;
    for best in best {
        let one = tried(&found, best);
        let goal = best["goal"].as_str().unwrap();
        let (name, limit) = goal.split_once('=').unwrap();
        let limit: f64 = limit.parse().unwrap();
        let place =
            |one: &Value| (number(&one["score"]["density"]), number(&one["score"]["error"]));
        let (read, error) = place(one);
        let meant = |other: &&Value| {
            other["pipeline"] == best["pipeline"]
                && (other["density"].is_null()
                    || (name == "density" && number(&other["density"]) == limit))
        };
        let meets = |(read, error): (f64, f64)| {
            if name == "density" { read <= 1.02 * limit } else { error <= limit }
        };
        assert_eq!(best["tried"].is_null(), !meets((read, error)), "{goal}");
        unmet += usize::from(best["tried"].is_null());
        for other in all.iter().filter(meant).map(place) {
            let better = if name == "density" { other.1 < error } else { other.0 < read };
            assert!(!meets(other) || (meets((read, error)) && !better), "{goal}");
        }
        assert!(table.contains(goal));
    }
    // Sink and window of the file are a quarter of these 1024 tokens.
    assert_eq!((unmet, table.matches("nearest reads").count()), (2, 2), "Quest at 10 and 20 %");
    assert_eq!(best[0]["pipeline"], "oracle top-k", "in the order given");
    assert!(list(&found, "left_out").is_empty());
}

#[test]
fn neither_order_nor_threads_nor_halving_with_all_kept_changes_what_is_found() {
    let world = World::new();
    let (_, found) = world.tune("1", &["top.toml", "quest.toml"], &AT);
    assert_eq!(found["queries"], serde_json::json!([2, 4, 8]));
    world.write(
        "turned.toml",
        "search = true",
        "oracle-top-k",
        "selectors.0.size = [64, 4]\nselectors.1.size = [64, 8]\nselectors.2.score = [\"group\", \"head\"]",
    );
    let (_, turned) = world.tune("3", &["quest.toml", "turned.toml"], &AT);
    assert_eq!(bests(&found), bests(&turned));
    let last = |found: &Value| list(found, "tried").iter().filter(|one| one["rung"] == 2).count();
    assert!(last(&found) < list(&found, "tried").len(), "some were dropped");
    let (_, kept) =
        world.tune("2", &["top.toml", "quest.toml"], &[&AT[..], &["--keep", "1"]].concat());
    let (_, whole) =
        world.tune("2", &["top.toml", "quest.toml"], &[&AT[..], &["--rungs", "1"]].concat());
    assert_eq!(last(&kept), list(&kept, "tried").len(), "none was dropped");
    assert_eq!(bests(&kept), bests(&whole));
}

#[test]
fn the_front_is_told_without_goals_and_measured_on_held_out_texts() {
    let world = World::new();
    let (held_out, plot, folder) =
        (world.path("2.safetensors"), world.path("out.svg"), world.path("best"));
    let layers = ["--held-out-layers", "1", "--layers", "0"];
    let outputs = ["--held-out", &held_out, "--plot", &plot, "--output", &folder];
    let more = [&layers[..], &outputs].concat();
    let (table, found) = world.tune("2", &["quest.toml"], &more);
    let best = list(&found, "best");
    assert!(!best.is_empty() && table.contains("front") && table.contains("held out: read"));
    for best in best {
        let one = tried(&found, best);
        assert_eq!((&one["front"], &best["goal"]), (&true.into(), &Value::Null));
        assert_eq!(
            (&one["score"]["rows"], &best["held_out"]["rows"]),
            (&32.into(), &32.into()),
            "8 queries, 4 heads"
        );
        assert_ne!(one["score"]["error"], best["held_out"]["error"]);
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("held out") && svg.contains("Quest"));
    // Each file runs, and comes to what was told of it.
    let (trace, json) = (world.path("1.safetensors"), world.path("compared.json"));
    let files =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path().display().to_string());
    let mut files: Vec<String> = files.collect();
    files.sort();
    assert_eq!(files.len(), best.len());
    let mut line = vec!["compare"];
    line.extend(files.iter().map(String::as_str));
    line.extend(["--trace", &trace, "--layers", "0", "--json", &json]);
    assert_eq!(run(&line).status.code(), Some(0));
    let compared: Value = read_json(json);
    let errors = |all: Vec<&Value>| {
        let mut errors: Vec<f64> = all.into_iter().map(number).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    let told = errors(best.iter().map(|best| &tried(&found, best)["score"]["error"]).collect());
    let again = errors(
        list(&compared, "pipelines").iter().map(|one| &one["output_error"]["mean"]).collect(),
    );
    for (told, again) in told.iter().zip(&again) {
        assert!((told - again).abs() < 1e-12, "{told} {again}");
    }
}

/// Work goes on where it was interrupted, and results of other work are refused.
#[test]
fn kept_results_are_not_computed_again() {
    let world = World::new();
    let results = world.path("results.jsonl");
    let more = [&AT[..], &["--results", &results]].concat();
    let (table, found) = world.tune("2", &["top.toml"], &more);
    let whole = std::fs::read_to_string(&results).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    assert!(lines.len() > 20, "{}", lines.len());
    // An interruption in the middle of a line.
    let cut = lines[..10].join("\n") + "\n" + &lines[10][..lines[10].len() / 2];
    std::fs::write(&results, cut).unwrap();
    let (again, found_again) = world.tune("1", &["top.toml"], &more);
    assert_eq!((table, found), (again, found_again));
    assert_eq!(std::fs::read_to_string(&results).unwrap(), whole);
    let (grid, trace) = (world.path("top.toml"), world.path("1.safetensors"));
    let other = ["tune", &grid, "--trace", &trace, "--results", &results, "--queries", "4"];
    refuse(&other, "results.jsonl");
}

/// Each shard does its share of a rung; `merge` tells what is missing, until all rungs are whole.
#[test]
fn shards_come_to_what_one_run_does() {
    let world = World::new();
    let folders = ["alone", "together"].map(|name| world.path(name));
    let (told, alone) =
        world.tune("2", &["quest.toml"], &["--rungs", "2", "--output", &folders[0]]);
    let (grid, trace) = (world.path("quest.toml"), world.path("1.safetensors"));
    let files = ["1.jsonl", "2.jsonl"].map(|name| world.path(name));
    let (all, json) = (world.path("all.jsonl"), world.path("all.json"));
    let outputs = ["--results", &all, "--json", &json, "--output", &folders[1]];
    let merge = || run(&[&["merge", &files[0], &files[1]], &outputs[..]].concat());
    for rung in 1..=2 {
        for (shard, file) in ["1/2", "2/2"].into_iter().zip(&files) {
            let line = ["tune", &grid, "--trace", &trace, "--rungs", "2", "--results", file];
            let output = run(&[&line[..], &["--shard", shard]].concat());
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.code() == Some(0), "{said}");
            assert!(said.contains(&format!("share {shard} is done")), "{said}");
        }
        let output = merge();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(i32::from(rung == 1)), "{said}");
        assert_eq!(said.contains("incomplete:"), rung == 1, "{said}");
        if rung == 2 {
            assert_eq!(String::from_utf8(output.stdout).unwrap(), told);
        }
        for file in &files {
            std::fs::copy(&all, file).unwrap();
        }
    }
    let together: Value = read_json(json);
    assert_eq!(alone, together);
    let [alone, together] = folders.map(|folder| files_of(&folder));
    assert!(!alone.is_empty() && alone == together);
}

/// Names and texts of the files in a folder.
fn files_of(folder: &str) -> BTreeMap<OsString, String> {
    let files = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name(), std::fs::read_to_string(file.path()).unwrap())).collect()
}

#[test]
fn bad_input_is_refused() {
    let world = World::new();
    let (grid, trace) = (world.path("quest.toml"), world.path("1.safetensors"));
    world.write("bad.toml", "", "quest", "selectors.2.pages = [8]");
    refuse(&["tune", &world.path("bad.toml"), "--trace", &trace], "unknown field `pages`");
    refuse(&["tune", &world.path("none.toml"), "--trace", &trace], "cannot be read");
    refuse(&["tune", &grid, "--trace", &world.path("none")], "none");
    for (at, expected) in [
        ("density=10", "10 % is 0.1"),
        ("density", "expected density=SHARE or error=NUMBER"),
        ("density=0.1,0.1", "stands there twice"),
        ("speed=3", "expected density=SHARE or error=NUMBER"),
    ] {
        refuse(&["tune", &grid, "--trace", &trace, "--at", at], expected);
    }
    refuse(&["tune", &grid, "--trace", &trace, "--layers", "7"], "has no layer 7");
    refuse(&["tune", &grid, "--trace", &trace, "--queries", "9"], "--queries");
    refuse(
        &["tune", &grid, "--trace", &trace, "--held-out", &trace, "--held-out-layers", "7"],
        "has no layer 7",
    );
    refuse(&["tune", &grid, "--trace", &trace, "--rungs", "0"], "from 1 to 16");
    refuse(&["tune", &grid, "--trace", &trace, "--keep", "0"], "above 0");
    refuse(&["tune", &grid, "--trace", &trace, "--json", &grid], "expected another file");
    refuse(&["tune", &grid, "--trace", &trace, "--output", &trace], "--output");
}

/// A grid that varies what the search sets would show settings that were not tried.
#[test]
fn what_a_search_sets_cannot_be_varied() {
    let world = World::new();
    world.write("sizes.toml", "search = true", "quest", "selectors.2.size = [0.02, 0.1]");
    let (grid, trace) = (world.path("sizes.toml"), world.path("1.safetensors"));
    refuse(
        &["tune", &grid, "--trace", &trace, "--at", "density=0.1"],
        "sets selectors.2.size, which the grid varies",
    );
}

/// All grids of the repository name pipelines that load.
#[test]
fn shipped_grids_load() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../grids");
    let mut grids = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let grid = vattention::config::ParameterGrid::load(file.unwrap().path()).unwrap();
        assert!(!grid.combinations.is_empty() && grid.combinations.len() <= 200, "{}", grid.name);
        grids += 1;
    }
    assert!(grids >= 25);
}
