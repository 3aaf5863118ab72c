//! Settings of single layers in pipeline files.

use std::sync::Arc;

use serde_json::{Value, json};
use vattention_config::{ConfigError, Loader, load, shares};
use vattention_core::{PipelineConfig, pipeline::Layers};
use {vattention_estimators as _, vattention_selectors as _};

const BASE: &str = r#"
name = "base"
share = "head"

[[selectors]]
type = "sink"
size = 4

[[selectors]]
type = "oracle-top-k"
size = 0.05

[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.1
"#;

fn with(layers: &str) -> Result<Arc<PipelineConfig>, ConfigError> {
    Loader::default().parse("p.toml", &format!("{BASE}{layers}"))
}

fn refuse(layers: &str) -> ConfigError {
    with(layers).unwrap_err()
}

/// Line after the base, and message, of each problem.
fn problems(error: &ConfigError) -> Vec<(isize, String)> {
    let lines = BASE.lines().count() as isize;
    let problem = |problem: &vattention_config::Problem| {
        (problem.place().unwrap().1 as isize - lines, problem.message().to_owned())
    };
    error.problems.iter().map(problem).collect()
}

/// Pipeline of a layer, as JSON.
fn layer(pipeline: &Arc<PipelineConfig>, layer: usize) -> Value {
    serde_json::to_value(&**pipeline.layer_config(layer)).unwrap()
}

#[test]
fn dense_layers_may_be_ranges() {
    let text = "dense_layers = [0, \"2..30\", \"40..\"]";
    let pipeline = Loader::default().parse("p.toml", text).unwrap();
    assert_eq!(pipeline.dense_layers, [Layers::One(0), Layers::Range(2, 30), Layers::From(40)]);
    assert!(toml::to_string(&*pipeline).unwrap().contains(text));
    let bad = "dense_layers = [\"2..=29\", \"5..5\", -1]";
    let error = Loader::default().parse("p.toml", bad).unwrap_err();
    let columns: Vec<_> = error.problems.iter().map(|p| p.place().unwrap().2).collect();
    assert_eq!(columns, [17, 27, 35], "{error}");
    assert!(error.to_string().contains("(\"2..30\")"), "{error}");
    assert!(error.to_string().contains("a range excludes its end"), "{error}");
}

#[test]
fn settings_of_layers_change_the_rest_of_the_file() {
    let pipeline = with(
        "[[layers]]\nat = [0, \"2..4\"]\nselectors.1.size = 0.2\nestimator.mode = \"strict\"\n\
         [[layers]]\nat = [9]\nsampler.base = 64\n[[layers]]\nat = [\"10..\"]\nalone = true\n\
         selectors = [{ type = \"window\", size = 8 }]\n\
         estimator = { type = \"ratio\", epsilon = 0.1, delta = 0.1, rounds = 2 }",
    )
    .unwrap();
    let base = Loader::default().parse("p.toml", BASE).unwrap();
    for i in [1, 4, 8] {
        assert_eq!(pipeline.layer_config(i).selectors.len(), 2);
        assert_eq!(layer(&pipeline, i)["selectors"], layer(&base, 0)["selectors"]);
        assert_eq!(layer(&pipeline, i)["estimator"]["mode"], "default");
    }
    for i in [0, 2, 3] {
        let own = layer(&pipeline, i);
        assert_eq!(own["selectors"][0], json!({ "type": "sink", "size": 4 }), "as at the others");
        assert_eq!(own["selectors"][1]["size"], 0.2);
        assert_eq!((&own["estimator"]["mode"], &own["share"]), (&"strict".into(), &"head".into()));
        assert_eq!(own["estimator"]["epsilon"], 0.1);
    }
    assert_eq!(layer(&pipeline, 9)["sampler"]["base"], 64);
    for i in [10, 100] {
        let own = layer(&pipeline, i);
        assert_eq!(own["selectors"], json!([{ "type": "window", "size": 8 }]), "nothing else");
        assert_eq!((&own["sampler"], &own["share"]), (&Value::Null, &"head".into()));
        assert_eq!(own["estimator"]["rounds"], 2);
    }
}

/// Layers with `alone` may lack parts that the rest of the file has.
#[test]
fn layers_with_alone_survive_a_round_trip() {
    let text = format!("{BASE}[[layers]]\nat = [3]\nalone = true\n");
    let pipeline = Loader::default().parse("p.toml", &text).unwrap();
    assert!(
        pipeline.layer_config(3).reads_everything() && !pipeline.layer_config(2).reads_everything()
    );
    let again = Loader::default().parse("p.toml", &toml::to_string(&*pipeline).unwrap()).unwrap();
    assert_eq!(format!("{pipeline:?}"), format!("{again:?}"));
}

#[test]
fn settings_of_layers_survive_a_round_trip() {
    let layers = "[[layers]]\nat = [0, \"2..4\"]\nselectors.1.size = 0.2\n\
                  [[layers]]\nat = [\"9..\"]\nsampler.base = 0.01\nestimator.mode = \"strict\"\n";
    let pipeline = with(layers).unwrap();
    let again = Loader::default().parse("p.toml", &toml::to_string(&*pipeline).unwrap()).unwrap();
    assert_eq!(format!("{pipeline:?}"), format!("{again:?}"));
    let text = serde_json::to_string(&*pipeline).unwrap();
    let again: PipelineConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(format!("{pipeline:?}"), format!("{again:?}"));
    let plain = serde_json::to_string(&*Loader::default().parse("p.toml", BASE).unwrap()).unwrap();
    assert!(
        text != plain && !plain.contains("layers\":[{"),
        "the JSON without layers is unchanged"
    );
    let shares: Vec<(String, f64)> = shares(&pipeline)
        .into_iter()
        .map(|(field, share)| (field, share.share().unwrap().get()))
        .collect();
    let named = |field: &str, share: f64| (field.to_owned(), share);
    assert_eq!(
        shares,
        [
            named("selectors[1].size", 0.05),
            named("layers[0].selectors[1].size", 0.2),
            named("layers[1].selectors[1].size", 0.05),
            named("layers[1].sampler.base", 0.01),
        ]
    );
}

#[test]
fn extending_files_and_set_options_change_the_settings_of_layers() {
    let folder = tempfile::tempdir().unwrap();
    let layers = "[[layers]]\nat = [1]\nselectors.1.size = 0.2\n";
    std::fs::write(folder.path().join("base.toml"), format!("{BASE}{layers}")).unwrap();
    let child = "extends = \"base.toml\"\n[selectors.0]\nsize = 7\n[layers.0]\nat = [\"1..3\"]\n";
    let path = folder.path().join("child.toml");
    std::fs::write(&path, child).unwrap();
    let own = layer(&load(&path).unwrap(), 2);
    assert_eq!(
        (&own["selectors"][0]["size"], &own["selectors"][1]["size"]),
        (&7.into(), &0.2.into())
    );
    let set = Loader { set: vec!["layers.0.selectors.1.size = 0.3".into()] };
    assert_eq!(layer(&set.load(&path).unwrap(), 2)["selectors"][1]["size"], 0.3);
}

/// Error bars of all layers are counted together, so that their target and delta must agree; sizes
/// of samples may differ.
#[test]
fn error_bars_agree_at_all_layers() {
    let budget = "[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 0.1\n[[layers]]\nat = [1]\n";
    let parse = |more: &str| Loader::default().parse("p.toml", &format!("{budget}{more}"));
    assert!(parse("estimator.size = 0.2").is_ok());
    let error = parse("estimator.delta = 0.2").unwrap_err().to_string();
    let expected =
        "sdpa has an error bar, delta 0.2 at these layers, and sdpa has an error bar, delta 0.1";
    assert!(error.contains(expected), "{error}");
}

/// Each problem is reported once.
#[test]
fn problems_in_settings_of_layers_are_reported_at_their_place() {
    for (layers, line, message) in [
        (
            "[[layers]]\nat = [1]\nselectors.1.size = 5.0",
            3,
            "bad value for layers[0].selectors[1].size",
        ),
        ("[[layers]]\nat = [1]\nselectors.7.size = 5", 3, "`7` is not the number of an element"),
        (
            "[[layers]]\nat = [1]\nselectors.1.sise = 5",
            3,
            "unknown field `sise` in layers[0].selectors[1]",
        ),
        (
            "[[layers]]\nat = [1]\nestimator.epsilon = 10",
            3,
            "bad value for layers[0].estimator.epsilon",
        ),
        ("[[layers]]\nat = [1]\nshare = \"group\"", 3, "unknown key `layers[0].share`"),
        ("[[layers]]\nselectors.1.size = 5", 1, "layers[0].at names no layer"),
        ("[[layers]]\nat = []", 2, "layers[0].at names no layer"),
        ("[[layers]]\nat = [\"4..4\"]", 2, "bad value for layers[0].at[0]: no layer is in"),
        ("[[layers]]\nat = [1]\nalone = 3", 3, "wrong type for layers[0].alone"),
        ("[[layers]]\nat = 3", 2, "wrong type for layers[0].at"),
        ("[layers]\nat = [3]", 1, "`layers` must be an array of tables"),
        (
            "[[layers]]\nat = [\"0..3\"]\n[[layers]]\nat = [7, 2]",
            3,
            "layer 2 is here and in layers[0]",
        ),
        ("[[layers]]\nat = [1]\nestimator.epsilon = 0.2", 1, "sdpa is promised within epsilon 0.2"),
        (
            "[[layers]]\nat = [1]\n\
             estimator = { type = \"clt\", target = \"sdpa\", delta = 0.1, size = 9 }",
            1,
            "sdpa has an error bar, delta 0.1 at these layers",
        ),
    ] {
        let error = refuse(layers);
        let problems = problems(&error);
        assert_eq!(problems.len(), 1, "{layers}: {error}");
        assert_eq!(problems[0].0, line, "{layers}: {error}");
        assert!(problems[0].1.starts_with(message), "{layers}: {error}");
    }
}

#[test]
fn problems_of_all_layers_are_reported_once() {
    let text = BASE.replace("size = 4", "size = 0").replace("delta = 0.1", "delta = 7");
    let layers = "[[layers]]\nat = [1]\nselectors.1.size = 5.0\n[[layers]]\nat = [2]";
    let error = Loader::default().parse("p.toml", &format!("{text}{layers}")).unwrap_err();
    let lines: Vec<isize> = problems(&error).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [-9, 0, 3], "{error}");
}

#[test]
fn conflicts_at_a_layer_name_the_layer() {
    let error = refuse(
        "[[layers]]\nat = [1]\nselectors.1.score = \"group\"\nestimator.mode = \"rigorous\"",
    );
    assert_eq!(error.problems.len(), 1, "{error}");
    let message = error.problems[0].message();
    assert!(message.starts_with("at layers[0], `ratio` as configured needs"), "{error}");
}

/// Layers without settings of their own are dense.
#[test]
fn only_some_layers_may_be_sparse() {
    let text = "[[layers]]\nat = [\"2..\"]\nselectors = [{ type = \"sink\", size = 4 }]\n\
                estimator = { type = \"ratio\", epsilon = 0.1, delta = 0.2 }";
    let pipeline = Loader::default().parse("p.toml", text).unwrap();
    assert!(!pipeline.is_dense() && pipeline.layer_config(0).reads_everything());
    assert_eq!(pipeline.promise().unwrap().delta.get(), 0.2);
}
