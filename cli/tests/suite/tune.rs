//! `vattention tune`.

use crate::world::{World, config, expect_code, list, number};
use serde_json::Value;
use std::collections::BTreeMap;

/// Returns a folder with two traces of two layers, and two grids.
fn world() -> World {
    let world = World::empty();
    let size = "--tokens 1024 --query-heads 4 --kv-heads 2 --head-dim 16 --value-dim 12";
    for seed in ["1", "2"] {
        let more = format!("--queries 8 --layers 2 --seed {seed} -o {seed}.safetensors");
        world.succeed(&format!("synth --kind typical {size} {more}"));
    }
    world.write_grid(
        "top.toml",
        "search = true",
        "oracle-top-k",
        "selectors.0.size = [4, 64]\nselectors.1.size = [8, 64]\n\
         selectors.2.score = [\"head\", \"group\"]",
    );
    let grid = "selectors.2.size = [0.02, 0.1, 0.3]\nselectors.2.page = [8, 32]";
    world.write_grid("quest.toml", "", "quest", grid);
    world
}

impl World {
    fn write_grid(&self, name: &str, head: &str, base: &str, grid: &str) {
        let base = config(base);
        self.write(name, format!("base = \"{base}\"\n{head}\n[grid]\n{grid}\n"));
    }

    /// Runs `tune` with grids and options, and returns its table and its JSON.
    #[track_caller]
    fn tune(&self, threads: &str, line: &str) -> (String, Value) {
        let line = format!("tune {line} --trace 1.safetensors --json out.json");
        let output = self.command(&line).env("RAYON_NUM_THREADS", threads).output().unwrap();
        assert_eq!(expect_code(&output, 0), "", "{line}");
        (String::from_utf8(output.stdout).unwrap(), self.json("out.json"))
    }
}

/// Returns the candidate of a best entry: it meets the goal, or is the nearest to it.
fn tried<'a>(found: &'a Value, best: &Value) -> &'a Value {
    let number = best["tried"].as_u64().or(best["nearest"].as_u64());
    &found["tried"][number.unwrap() as usize]
}

/// Returns methods, goals and the best candidates, sorted.
fn bests(found: &Value) -> Vec<String> {
    let describe = |best: &Value| {
        let tried = tried(found, best);
        format!(
            "{} {} {} {} {}",
            best["pipeline"], best["goal"], tried["settings"], tried["set"], tried["score"]
        )
    };
    let mut bests: Vec<String> = list(found, "best").iter().map(describe).collect();
    bests.sort();
    bests
}

const AT: &str = "--at density=0.1,0.2 --at error=0.1";

#[test]
fn the_best_meets_its_goal_and_no_candidate_is_better() {
    let world = world();
    let (table, found) = world.tune("2", &format!("top.toml quest.toml {AT} --rungs 1"));
    let all = list(&found, "tried");
    // Eight candidates run unchanged and at two densities, and six run unchanged.
    assert_eq!(all.len(), 8 * 3 + 6);
    assert_eq!(found["queries"], serde_json::json!([8]));
    let best = list(&found, "best");
    assert_eq!(best.len(), 6, "two methods, three goals");
    let mut unmet = 0;
    for best in best {
        let goal = best["goal"].as_str().unwrap();
        let (name, limit) = goal.split_once('=').unwrap();
        let limit: f64 = limit.parse().unwrap();
        let place = |candidate: &Value| {
            let score = &candidate["score"];
            (number(&score["density"]), number(&score["error"]))
        };
        let (read, error) = place(tried(&found, best));
        let competes = |other: &&Value| {
            other["pipeline"] == best["pipeline"]
                && (other["density"].is_null()
                    || (name == "density" && number(&other["density"]) == limit))
        };
        let meets = |(read, error): (f64, f64)| {
            if name == "density" { read <= 1.02 * limit } else { error <= limit }
        };
        assert_eq!(best["tried"].is_null(), !meets((read, error)), "{goal}");
        unmet += usize::from(best["tried"].is_null());
        for other in all.iter().filter(competes).map(place) {
            let better = if name == "density" { other.1 < error } else { other.0 < read };
            assert!(!meets(other) || (meets((read, error)) && !better), "{goal}");
        }
        assert!(table.contains(goal));
    }
    // Sink and window of the pipeline are a quarter of these 1024 tokens.
    assert_eq!((unmet, table.matches("nearest (read").count()), (2, 2), "Quest at 10 and 20 %");
    assert_eq!(best[0]["pipeline"], "oracle top-k", "methods are in the order of the grids");
    assert!(list(&found, "left_out").is_empty());
}

#[test]
fn results_depend_on_neither_order_nor_threads_nor_rungs_that_keep_all() {
    let world = world();
    let (_, found) = world.tune("1", &format!("top.toml quest.toml {AT}"));
    assert_eq!(found["queries"], serde_json::json!([2, 4, 8]));
    world.write_grid(
        "turned.toml",
        "search = true",
        "oracle-top-k",
        "selectors.0.size = [64, 4]\nselectors.1.size = [64, 8]\n\
         selectors.2.score = [\"group\", \"head\"]",
    );
    let (_, turned) = world.tune("3", &format!("quest.toml turned.toml {AT}"));
    assert_eq!(bests(&found), bests(&turned));
    let last = |found: &Value| {
        list(found, "tried").iter().filter(|candidate| candidate["rung"] == 2).count()
    };
    assert!(last(&found) < list(&found, "tried").len(), "some were dropped");
    let (_, kept) = world.tune("2", &format!("top.toml quest.toml {AT} --keep 1"));
    let (_, whole) = world.tune("2", &format!("top.toml quest.toml {AT} --rungs 1"));
    assert_eq!(last(&kept), list(&kept, "tried").len(), "none was dropped");
    assert_eq!(bests(&kept), bests(&whole));
}

#[test]
fn the_front_is_reported_without_goals_and_measured_on_held_out_traces() {
    let world = world();
    let layers = "--held-out-layers 1 --layers 0 --held-out 2.safetensors";
    let (table, found) =
        world.tune("2", &format!("quest.toml {layers} --plot out.svg --output best"));
    let best = list(&found, "best");
    assert!(!best.is_empty() && table.contains("front") && table.contains("held out: read"));
    for best in best {
        let candidate = tried(&found, best);
        assert_eq!((&candidate["front"], &best["goal"]), (&true.into(), &Value::Null));
        assert_eq!(
            (&candidate["score"]["rows"], &best["held_out"]["rows"]),
            (&32.into(), &32.into()),
            "8 queries, 4 heads"
        );
        assert_ne!(candidate["score"]["error"], best["held_out"]["error"]);
    }
    let svg = std::fs::read_to_string(world.path("out.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("held out") && svg.contains("Quest"));
    // Each file runs, and has the error that was reported.
    let files = files_of(&world, "best");
    assert_eq!(files.len(), best.len());
    let files: Vec<String> = files.keys().map(|name| format!("best/{name}")).collect();
    let compare = format!("compare {} --trace 1.safetensors --layers 0", files.join(" "));
    world.succeed(&format!("{compare} --json compared.json"));
    let compared = world.json("compared.json");
    let errors = |all: Vec<&Value>| {
        let mut errors: Vec<f64> = all.into_iter().map(number).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    let reported = errors(best.iter().map(|best| &tried(&found, best)["score"]["error"]).collect());
    let pipelines = list(&compared, "pipelines").iter();
    let measured = errors(pipelines.map(|pipeline| &pipeline["output_error"]["mean"]).collect());
    for (reported, measured) in reported.iter().zip(&measured) {
        assert!((reported - measured).abs() < 1e-12, "{reported} {measured}");
    }
}

/// An interrupted run continues from its stored results, and results of other work are refused.
#[test]
fn stored_results_are_not_computed_again() {
    let world = world();
    let results = world.path("results.jsonl");
    let line = format!("top.toml {AT} --results results.jsonl");
    let (table, found) = world.tune("2", &line);
    let whole = std::fs::read_to_string(&results).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    assert!(lines.len() > 20, "{}", lines.len());
    // The interruption was in the middle of a line.
    let cut = lines[..10].join("\n") + "\n" + &lines[10][..lines[10].len() / 2];
    std::fs::write(&results, cut).unwrap();
    let (again, found_again) = world.tune("1", &line);
    assert_eq!((table, found), (again, found_again));
    assert_eq!(std::fs::read_to_string(&results).unwrap(), whole);
    let other = "tune top.toml --trace 1.safetensors --results results.jsonl --queries 4";
    world.refuse(other, "results.jsonl");
}

/// Each shard does its part of a rung, and `merge` reports missing results until all rungs are
/// complete.
#[test]
fn shards_give_the_results_of_a_single_run() {
    let world = world();
    let (table, alone) = world.tune("2", "quest.toml --rungs 2 --output alone");
    for rung in 1..=2 {
        for number in 1..=2 {
            let shard = format!("--results {number}.jsonl --shard {number}/2");
            let line = format!("tune quest.toml --rungs 2 --trace 1.safetensors {shard}");
            let said = world.succeed(&line);
            assert!(said.contains(&format!("shard {number}/2 is done")), "{said}");
        }
        let outputs = "--results all.jsonl --json all.json --output together";
        let output = world.run(&format!("merge 1.jsonl 2.jsonl {outputs}"));
        let said = expect_code(&output, i32::from(rung == 1));
        assert_eq!(said.contains("incomplete:"), rung == 1, "{said}");
        if rung == 2 {
            assert_eq!(String::from_utf8(output.stdout).unwrap(), table);
        }
        for file in ["1.jsonl", "2.jsonl"] {
            std::fs::copy(world.path("all.jsonl"), world.path(file)).unwrap();
        }
    }
    assert_eq!(alone, world.json("all.json"));
    let [alone, together] = ["alone", "together"].map(|folder| files_of(&world, folder));
    assert!(!alone.is_empty() && alone == together);
}

/// Returns names and texts of the files in a folder.
fn files_of(world: &World, folder: &str) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(world.path(folder)).unwrap().map(Result::unwrap);
    let text = |file: &std::fs::DirEntry| std::fs::read_to_string(file.path()).unwrap();
    files.map(|file| (file.file_name().into_string().unwrap(), text(&file))).collect()
}

#[test]
fn bad_input_is_refused() {
    let world = world();
    world.write_grid("bad.toml", "", "quest", "selectors.2.pages = [8]");
    for (line, expected) in [
        ("bad.toml --trace 1.safetensors", "unknown field `pages`"),
        ("none.toml --trace 1.safetensors", "cannot be read"),
        ("quest.toml --trace none", "none"),
    ] {
        world.refuse(&format!("tune {line}"), expected);
    }
    for (options, expected) in [
        ("--at density=10", "10 % is 0.1"),
        ("--at density", "expected density=SHARE or error=NUMBER"),
        ("--at density=0.1,0.1", "is given twice"),
        ("--at speed=3", "expected density=SHARE or error=NUMBER"),
        ("--layers 7", "has no layer 7"),
        ("--queries 9", "--queries"),
        ("--held-out 1.safetensors --held-out-layers 7", "has no layer 7"),
        ("--rungs 0", "from 1 to 16"),
        ("--keep 0", "above 0"),
        ("--json quest.toml", "expected another file"),
        ("--output 1.safetensors", "--output"),
    ] {
        world.refuse(&format!("tune quest.toml --trace 1.safetensors {options}"), expected);
    }
}

/// A grid must not vary a setting that the search changes: the table would show settings that were
/// not measured.
#[test]
fn a_grid_cannot_vary_searched_settings() {
    let world = world();
    world.write_grid("sizes.toml", "search = true", "quest", "selectors.2.size = [0.02, 0.1]");
    let line = "tune sizes.toml --trace 1.safetensors --at density=0.1";
    world.refuse(line, "both the search for a density and the grid set selectors.2.size");
}

/// All grids of the repository, and the pipelines that they name, can be loaded.
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
