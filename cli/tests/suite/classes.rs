//! A selector that needs the classes of tokens (special, punctuation), on models and traces with
//! classes, and on traces without.

use crate::world::{QUESTION, World, expect_code, recall};

const FASTGEN: &str = r#"
    name = "fastgen"

    [[selectors]]
    type = "fastgen"
    recover = 0.8
    frequent = 0.1
    local = 0.1
"#;

const SAMPLED: &str = r#"
    [estimator]
    type = "ratio"
    epsilon = 0.2
    delta = 0.2
"#;

fn world() -> World {
    let world = World::new();
    world.write("fastgen.toml", FASTGEN);
    world.write(
        "sampled.toml",
        format!("{FASTGEN}{SAMPLED}").replace("\"fastgen\"\n\n", "\"sampled\"\n\n"),
    );
    world
}

fn captured() -> World {
    let world = world();
    let model = recall().display().to_string();
    let text = "--text context.txt --tokens 600 -o trace.safetensors";
    world.succeed(&format!("capture --model {model} {text}"));
    world
}

fn synthetic() -> World {
    let world = world();
    world.succeed("synth --kind typical --tokens 600 --queries 2 -o trace.safetensors");
    world
}

#[test]
fn captured_traces_have_the_classes_of_tokens() {
    let world = captured();
    let out = "--trace trace.safetensors --json out.json";
    world.succeed(&format!("compare fastgen.toml {out}"));
    let found = &world.json("out.json")["pipelines"][0];
    let number = |part: &str, key: &str| found[part][key].as_f64().unwrap();
    let read = found["density"].as_f64().unwrap();
    assert!(read > 0.01 && read < 0.9, "{found}");
    assert!(number("output_error", "mean") > 0.0);
    let live = &found["live"];
    let live_error = live["output_error"]["max"].as_f64().unwrap();
    assert!(live_error < 1e-5, "all live tokens are read: {live}");
    let verified = world.run(&format!("verify sampled.toml --trials 64 {out}"));
    assert!([Some(0), Some(1), Some(3)].contains(&verified.status.code()));
    let verdict = world.json("out.json");
    assert_eq!(
        (&verdict["pipeline"], verdict["heads"].as_array().unwrap().len()),
        (&"sampled".into(), 12)
    );
    let grid = "base = \"fastgen.toml\"\n[grid]\nselectors.0.recover = [0.5, 0.9]\n";
    world.write("grid.toml", grid);
    world.succeed(&format!("tune grid.toml {out}"));
    assert_eq!(world.json("out.json")["tried"].as_array().unwrap().len(), 2);
    world.succeed("check fastgen.toml --trace trace.safetensors");
    let bench = "bench fastgen.toml --seconds 0.01 --dtype f32 --threads 1";
    world.succeed(&format!("{bench} {out} --tokens 700"));
    assert_eq!(world.json("out.json")["left_out"].as_array().unwrap().len(), 0);
    let shown = world.succeed("trace trace.safetensors");
    assert!(
        shown.lines().any(|line| line.contains("classes")) && shown.contains(" yes "),
        "{shown}"
    );
}

#[test]
fn models_provide_the_classes_of_tokens() {
    let world = world();
    let model = recall().display().to_string();
    let texts = ["--context", "context.txt", "--question", QUESTION, "--json", "out.json"];
    let generate = [&["generate", "--model", &model, "--pipeline", "fastgen.toml"][..], &texts];
    world.succeed(&generate.concat());
    let density = world.json("out.json")["density"].as_f64().unwrap();
    assert!(density > 0.01 && density < 0.9, "{density}");
    let options = "--pipelines dense.toml fastgen.toml sampled.toml --tasks niah_single_1 \
                   --context 400 --cases 2 --json out.json";
    world.succeed(&format!("evaluate --model {model} {options}"));
    let variants = world.json("out.json")["variants"].clone();
    let density = |i: usize| variants[i]["density"].as_f64().unwrap();
    assert!(density(0) == 1.0 && density(1) < 0.9 && density(1) < density(2), "{variants}");
}

#[test]
fn pipelines_that_need_classes_are_refused_on_a_trace_without() {
    let world = synthetic();
    let trace = "--trace trace.safetensors";
    let expected = "trace.safetensors: no tensor `layers.0.classes`, and `fastgen` needs to know \
                    which tokens are special or punctuation; expected a trace that says so, as \
                    `vattention capture` writes";
    let commands = ["compare fastgen.toml", "verify sampled.toml", "check dense.toml fastgen.toml"];
    for command in commands.into_iter().chain(["bench fastgen.toml"]) {
        world.refuse(&format!("{command} {trace}"), expected);
    }
    let said = expect_code(&world.run(&format!("compare dense.toml fastgen.toml {trace}")), 0);
    assert_eq!(said, format!("note: left out: fastgen.toml: {expected}\n"));
    let needs = "fastgen, on layer 0: `fastgen` needs the class of each token";
    world.refuse("bench fastgen.toml --tokens 600", needs);
    // Dense layers need no classes.
    let dense = format!("dense_layers = [0]\n{FASTGEN}");
    world.write("dense0.toml", dense);
    world.succeed(&format!("compare dense0.toml {trace}"));
}

/// If the trace for choosing settings lacks classes, the method is left out. If a held-out trace
/// lacks them, the method's held-out cells are empty. The other method is reported both times.
#[test]
fn tune_leaves_out_methods_that_need_classes() {
    let write_grids = |world: &World| {
        let grid = |base: &str, key: &str| format!("base = \"{base}\"\n[grid]\n{key} = [0.5]\n");
        world.write("fastgen-grid.toml", grid("fastgen.toml", "selectors.0.recover"));
        world.write("window.toml", "[[selectors]]\ntype = \"window\"\nsize = 64\n");
        world.write("window-grid.toml", grid("window.toml", "selectors.0.size"));
    };
    let tune = |world: &World, held_out: &str| {
        let grids = "tune fastgen-grid.toml window-grid.toml --at error=1000";
        let traces = format!("--trace trace.safetensors --held-out {held_out}");
        let said = expect_code(&world.run(&format!("{grids} {traces} --json out.json")), 0);
        (said, world.json("out.json"))
    };
    let world = synthetic();
    write_grids(&world);
    let (said, found) = tune(&world, "trace.safetensors");
    assert!(
        said.starts_with("note: left out: fastgen") && said.contains("layers.0.classes"),
        "{said}"
    );
    assert_eq!(found["best"].as_array().unwrap().len(), 1, "{found}");
    assert!(found["best"][0]["held_out"].is_object(), "{found}");

    let world = captured();
    write_grids(&world);
    world.succeed("synth --kind typical --tokens 600 -o held-out.safetensors");
    let (_, found) = tune(&world, "held-out.safetensors");
    let best = found["best"].as_array().unwrap();
    let is_measured = |method: &str| {
        best.iter().find(|best| best["pipeline"] == method).unwrap()["held_out"].is_object()
    };
    assert_eq!((is_measured("fastgen"), is_measured("window")), (false, true), "{found}");
}
