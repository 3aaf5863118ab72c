//! Pipelines that cannot take the change of `--set`, or whose files are missing.

use safetensors::SafeTensors;
use serde_json::Value;

use crate::world::{World, expect_code, recall, root};

const CONFIGS: [&str; 4] = ["dense", "vattention-oracle", "quest", "hybrid"];

/// Returns a world with a trace and copies of some pipelines.
fn world() -> World {
    let world = World::new();
    world.succeed("synth --kind typical --tokens 600 -o trace");
    for name in CONFIGS {
        let file = format!("{name}.toml");
        world.write(&file, std::fs::read(root("configs").join(&file)).unwrap());
    }
    world
}

/// Returns the names of the files that were left out.
fn left_out(found: &Value) -> Vec<&str> {
    let left_out = found["left_out"].as_array().unwrap();
    left_out.iter().map(|pipeline| pipeline["file"].as_str().unwrap()).collect()
}

/// Each reason is printed once, with the names of the files.
#[test]
fn pipelines_that_cannot_take_a_change_are_left_out() {
    let world = world();
    let line = "compare dense.toml vattention-oracle.toml quest.toml hybrid.toml --trace trace \
                --queries 1 --json out.json --set estimator.epsilon=0.2";
    let output = world.run(line);
    let said = expect_code(&output, 0);
    assert_eq!(
        said,
        "note: left out: dense.toml, quest.toml: --set: the pipeline has no estimator\n\
         note: left out: hybrid.toml: --set: `ratio` sets both `epsilon` and `size`\n"
    );
    let found = world.json("out.json");
    assert_eq!(left_out(&found), ["dense.toml", "quest.toml", "hybrid.toml"]);
    assert_eq!(found["left_out"][1]["pipeline"], "Quest", "the name in the file");
    assert_eq!(found["pipelines"].as_array().unwrap().len(), 1);
    assert!(String::from_utf8(output.stdout).unwrap().contains("sdpa: 0.2, 0.1"));

    let evaluate = format!(
        "evaluate --model {} --pipelines promised.toml dense.toml --tasks niah_single_2 --cases 1 \
         --context 300 --no-errors --json out.json --set estimator.epsilon=0.3",
        recall().display()
    );
    let said = expect_code(&world.run(&evaluate), 0);
    assert_eq!(said, "note: left out: dense.toml: --set: the pipeline has no estimator\n");
    assert_eq!(left_out(&world.json("out.json")), ["dense.toml"]);

    let pareto = "study pareto hybrid.toml dense.toml --trace trace --queries 1 \
                  --set estimator.size=0.1";
    let said = expect_code(&world.run(pareto), 0);
    assert!(said.starts_with("note: left out: dense.toml: --set: "), "{said}");
    // Built-in pipelines have names, too.
    let bench = "bench --tokens 600 --seconds 0 --cold-bytes 1000000 --set estimator.epsilon=0.3";
    let said = expect_code(&world.run(bench), 0);
    let first = "note: left out: built-in pipeline hash, shared, built-in pipeline hash, per-head";
    assert!(said.starts_with(first) && said.lines().count() == 1, "{said}");
}

/// A change that no pipeline takes is one problem, which names the files.
#[test]
fn a_change_that_no_pipeline_takes_is_an_error() {
    let world = world();
    let refuse = |line: &str, expected: &str| {
        let said = expect_code(&world.run(line), 2);
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.matches("  × ").count(), 1, "{said}");
        assert!(said.ends_with("error: 1 problem in the configuration\n"), "{said}");
    };
    let all = "dense.toml vattention-oracle.toml quest.toml hybrid.toml promised.toml";
    let names = "dense.toml, vattention-oracle.toml, quest.toml and 2 more files";
    let compare = format!("compare {all} --trace trace");
    refuse(
        &format!("{compare} --set estimatr.epsilon=0.2"),
        &format!("`estimatr` (set on {names})"),
    );
    refuse(&format!("{compare} --set epsilon=0.2"), "did you mean `estimator.epsilon`?");
    refuse(
        &format!("{compare} --set epsilon=0.2"),
        &format!("unknown key `epsilon` (set on {names})"),
    );
    refuse("verify dense.toml --trace trace --set a=1", "unknown key `a` (set on dense.toml)");
    // `check` reports every problem.
    let check = "check promised.toml dense.toml --set estimator.epsilon=0.2";
    refuse(check, "the pipeline has no estimator (set on dense.toml)");
    // A file with an error of its own is not left out: it is an error of the command.
    world.write("wrong.toml", "sead = 1\n");
    let wrong = "compare promised.toml wrong.toml --trace trace --set estimator.epsilon=0.2";
    let said = expect_code(&world.run(wrong), 2);
    assert!(said.contains("unknown key `sead`") && said.contains("wrong.toml:1:1"), "{said}");
}

#[test]
fn a_value_that_toml_cannot_read_is_text() {
    let world = world();
    let priority = root("configs/priority.toml");
    let priority = priority.to_str().unwrap();
    let shown = world.succeed(&["check", priority, "--set", "sampler.index=8-bit"]);
    assert!(shown.contains("index = \"8-bit\""), "{shown}");
}

/// The other pipelines run, and the reason names the command that writes the file.
#[test]
fn pipelines_whose_files_are_missing_are_left_out() {
    let world = world();
    let loki = "name = \"loki\"\n[[selectors]]\ntype = \"loki\"\nsize = 16\nbasis = \"no/basis\"\n";
    world.write("loki.toml", loki);
    let reason = "loki.toml: no/basis cannot be read: No such file or directory (os error 2) \
                  (`vattention calibrate loki --trace TRACES -o no/basis` makes it from traces of \
                  the model)";
    let model = recall().display().to_string();
    let evaluate = format!(
        "evaluate --model {model} --tasks niah_single_2 --cases 1 --context 300 --no-errors --json \
         out.json --pipelines"
    );
    let commands = [
        "compare --trace trace --queries 1 --json out.json",
        "study pareto --trace trace --queries 1 --json out.json",
        "bench --tokens 600 --seconds 0 --cold-bytes 1000000 --json out.json",
        &evaluate,
    ];
    for command in commands {
        let line = format!("{command} loki.toml promised.toml");
        let said = expect_code(&world.run(&line), 0);
        assert_eq!(said, format!("note: left out: {reason}\n"), "{command}");
        assert_eq!(left_out(&world.json("out.json")), ["loki.toml"], "{command}");
        std::fs::remove_file(world.path("out.json")).unwrap();
        world.refuse(&format!("{command} loki.toml"), "vattention calibrate loki");
    }
    world.refuse("verify loki.toml --trace trace", "vattention calibrate loki");
    world.refuse("check loki.toml dense.toml", "vattention calibrate loki");
    // A missing pipeline file is an error of the command line.
    let line = "compare nowhere.toml dense.toml --trace trace";
    world.refuse(line, "nowhere.toml: cannot be read");
    for name in ["loki", "window"] {
        let text = format!("base = \"{name}.toml\"\n[grid]\nselectors.0.size = [8, 16]\n");
        world.write(&format!("{name}-grid.toml"), text);
    }
    world.write("window.toml", "[[selectors]]\ntype = \"window\"\nsize = 64\n");
    let tune = "tune loki-grid.toml window-grid.toml --trace trace --at error=1000 --queries 1";
    let said = expect_code(&world.run(tune), 0);
    let grid = reason.replacen("loki.toml", "loki-grid.toml", 1);
    assert_eq!(said, format!("note: left out: {grid}\n"));
    let tune = "tune loki-grid.toml --trace trace --at error=1000";
    world.refuse(tune, "vattention calibrate loki");
}

/// The pipelines' files exist, but lack the trace's layers.
#[test]
fn a_note_on_a_missing_layer_names_the_command_that_writes_the_file() {
    let world = world();
    // HATA's matrices, one for each KV head, of layers 9 and 23.
    let all = std::fs::read(root("weights/smollm2-hata.safetensors")).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&all).unwrap();
    let all = SafeTensors::deserialize(&all).unwrap();
    let is_kept = |name: &str| name.starts_with("layers.9.") || name.starts_with("layers.23.");
    let kept = all.iter().filter(|(name, _)| is_kept(name));
    let weights = safetensors::serialize(kept, metadata.metadata().clone()).unwrap();
    world.write("two-layers.safetensors", weights);
    let selector = "[[selectors]]\ntype = \"hash-attention\"\nsize = 16";
    world.write("by-head.toml", format!("{selector}\nweights = \"two-layers.safetensors\"\n"));
    let output = world.run("compare by-head.toml dense.toml --trace trace --queries 1");
    let said = expect_code(&output, 0);
    assert!(said.contains("there is no `layers.0.query.0.weight`"), "{said}");
    let advice = "; `vattention train-hash --trace TRACES -o FILE` makes a file from traces";
    assert!(said.contains(advice), "{said}");
    let shipped = root("data/smollm2.safetensors").display().to_string();
    let compare = format!("compare by-head.toml dense.toml --trace {shipped} --queries 1");
    let said = expect_code(&world.run(&compare), 0);
    assert!(said.contains("`codes = \"group\"`") && !said.contains("train-"), "{said}");
}

#[test]
fn layers_can_be_ranges() {
    let world = World::new();
    let shape = "synth --kind typical --tokens 600 --layers 4 --query-heads 2 --kv-heads 1";
    world.succeed(&format!("{shape} --head-dim 16 --queries 2 -o trace"));
    let compare = |layers: &str| {
        let line = format!("compare promised.toml --trace trace --json out.json --layers {layers}");
        world.succeed(&line);
        world.json("out.json")["pipelines"][0]["output_error"].clone()
    };
    let listed = compare("1,2,3");
    assert_eq!(compare("1-3"), listed);
    assert_eq!(compare("1..3,3"), listed);
    assert_ne!(compare("0-1"), listed);
    let refuse = |layers: &str, expected: &str| {
        let line = format!("compare promised.toml --trace trace --layers {layers}");
        world.refuse(&line, expected);
    };
    refuse("2-5", "has no layer 4; it has 0, 1, 2, 3");
    refuse("0-2,1", "names layer 1 twice");
    refuse("3-1", "no layer is in 3-1; expected the first layer before the last");
    refuse("a-b", "expected layers such as 3, 9-23 or 9..24, separated by commas");
    let study = "study coverage --trace trace --trials 1 --layers 0-1";
    world.succeed(study);
}
