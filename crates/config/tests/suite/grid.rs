//! Parameter grids: their combinations, and messages about bad grids.

use std::fs;

use vattention_config::{ConfigError, Loader, ParameterGrid, load, to_toml};
use vattention_core::PipelineConfig;
use {vattention_estimators as _, vattention_selectors as _};

const BASE: &str = r#"
name = "the base"
[[selectors]]
type = "sink"
size = 1
[[selectors]]
type = "quest"
size = 0.1
[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.1
"#;

fn grid(text: &str) -> Result<ParameterGrid, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("base.toml"), BASE).unwrap();
    let path = folder.path().join("grid.toml");
    fs::write(&path, format!("base = \"base.toml\"\n{text}")).unwrap();
    ParameterGrid::load(path)
}

/// The only problem: its line in the grid, and its text.
#[track_caller]
fn refusal(text: &str) -> (usize, String) {
    let error = grid(text).unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
    let (file, line, _) = error.problems[0].place().unwrap();
    assert!(file.ends_with("grid.toml"), "{file}");
    (line, error.to_string())
}

fn settings(grid: &ParameterGrid) -> Vec<String> {
    let describe = |(key, value): &(String, String)| format!("{key}={value}");
    grid.combinations
        .iter()
        .map(|point| point.settings.iter().map(describe).collect::<Vec<_>>().join(" "))
        .collect()
}

fn json(pipeline: &PipelineConfig) -> serde_json::Value {
    serde_json::to_value(pipeline).unwrap()
}

#[test]
fn combinations_equal_pipelines_with_the_same_set_options() {
    let text = "[grid]\nselectors.1.page = [8, 16]\n\
                selectors.1.score = [\"head\", \"group\"]\nshare = [\"head\"]";
    let grid = grid(text).unwrap();
    assert_eq!((&grid.name[..], grid.search), ("the base", false));
    assert_eq!(settings(&grid)[1], "selectors.1.page=8 selectors.1.score=group share=head");
    assert_eq!(grid.combinations.len(), 4);
    for point in &grid.combinations {
        let set = point.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected = Loader { set }.parse("base.toml", BASE).unwrap();
        assert_eq!(json(&point.pipeline), json(&expected));
    }
}

#[test]
fn tables_change_several_keys_together() {
    let text = "name = \"mine\"\nsearch = true\n[grid]\n\
                selectors.1 = [{ page = 8, bits = 4 }, { page = 32, bits = 2 }]";
    let grid = grid(text).unwrap();
    assert_eq!((&grid.name[..], grid.search), ("mine", true));
    assert_eq!(
        settings(&grid),
        ["selectors.1.page=8 selectors.1.bits=4", "selectors.1.page=32 selectors.1.bits=2"]
    );
    let last = json(&grid.combinations[1].pipeline);
    assert_eq!(
        (&last["selectors"][1]["page"], &last["selectors"][1]["bits"]),
        (&32.into(), &2.into())
    );
    assert_eq!(last["selectors"][1]["size"], 0.1, "as in the base");
}

#[test]
fn samples_are_different_and_depend_on_the_seed() {
    let draw = |seed: u32| {
        let sizes: Vec<String> = (1..=100).map(|size| size.to_string()).collect();
        let sizes = sizes.join(", ");
        let text = format!("samples = 90\nseed = {seed}\n[grid]\nselectors.0.size = [{sizes}]");
        settings(&grid(&text).unwrap())
    };
    let (first, same, other) = (draw(1), draw(1), draw(2));
    assert_eq!(first, same);
    assert_ne!(first, other);
    let mut distinct = first.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 90);
    let few = grid("samples = 50\n[grid]\nselectors.0.size = [1, 2]").unwrap();
    assert_eq!(few.combinations.len(), 2, "there are only two combinations");
}

#[test]
fn bad_grids_are_refused_with_their_place() {
    let cases = [
        ("[grid]\nselectors.1.pages = [8, 16]", 3, "unknown field `pages`"),
        ("[grid]\nestimatr.delta = [0.1]", 3, "unknown key `estimatr`"),
        ("grids = 1\n[grid]\nselectors.1.page = [8]", 2, "unknown key `grids`"),
        ("[grid]\nselectors.1.page = []", 3, "`selectors.1.page` has no values (expected"),
        ("[grid]\nselectors.1.page = 8", 3, "expected a list of values (a key with one value"),
        (
            "[grid]\nselectors.1.size = [0.1, \"x\"]",
            3,
            "first in the combination selectors.1.size = x",
        ),
        ("[grid]\nselectors.7.size = [1]", 3, "the list has 2 elements"),
        ("[grid]\nextends = [\"a\"]", 3, "`extends` cannot be varied"),
        ("[grid]", 2, "there is nothing to try"),
        ("samples = 0\n[grid]\nselectors.0.size = [1]", 2, "expected 1 to 4096"),
        ("samples = \"x\"\n[grid]\nselectors.0.size = [1]", 2, "samples"),
    ];
    for (text, line, expected) in cases {
        let (found, error) = refusal(text);
        assert!(
            found == line && error.contains(expected.trim_end_matches(" (expected")),
            "{text}: {found}: {error}"
        );
    }
}

/// The parts of some combinations conflict: the first of these combinations is named.
#[test]
fn the_first_invalid_combination_is_named() {
    let other = "{ type = \"sink\", size = 3 }";
    let text = format!(
        "[grid]\nselectors.1 = [{{ page = 8 }}, {other}]\n\
         estimator.mode = [\"default\", \"rigorous\"]"
    );
    let error = grid(&text).unwrap_err().to_string();
    let named = "in the combination selectors.1.type = sink, selectors.1.size = 3, \
                 estimator.mode = rigorous";
    assert!(error.contains("needs a proved bound") && error.contains(named), "{error}");
    assert_eq!(error.matches("needs a proved bound").count(), 1, "reported once: {error}");
}

#[test]
fn too_many_combinations_are_refused_before_they_are_built() {
    let list = format!("[{}]", "1, ".repeat(100));
    let keys = |count: usize| {
        let key = |i| format!("selectors.0.k{i} = {list}\n");
        (0..count).map(key).collect::<String>()
    };
    let (_, error) = refusal(&format!("[grid]\n{}", keys(2)));
    assert!(
        error.contains("10000 combinations, at most 4096") && error.contains("`samples = 200`"),
        "{error}"
    );
    let (_, error) = refusal(&format!("[grid]\n{}", keys(40)));
    assert!(error.contains("more than 2^64"), "{error}");
}

#[test]
fn a_missing_or_bad_base_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grid.toml");
    let load = |text: &str| {
        fs::write(&path, text).unwrap();
        ParameterGrid::load(&path).unwrap_err().to_string()
    };
    assert!(load("[grid]\nseed = [1]").contains("missing `base`"));
    let missing = load("base = \"no.toml\"\n[grid]\nseed = [1]");
    assert!(missing.contains("no.toml, which is not a file"), "{missing}");
    fs::write(folder.path().join("bad.toml"), "selectors = 3").unwrap();
    let bad = load("base = \"bad.toml\"\n[grid]\nseed = [1]");
    assert!(bad.contains("bad.toml:1:13") && bad.contains("must be an array of tables"), "{bad}");
    assert!(
        ParameterGrid::load(folder.path().join("none.toml"))
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
}

/// Pipelines of this repository, with all that they extend, are serialized into another folder.
#[test]
fn serialized_pipelines_load_as_the_same_pipelines() {
    let configs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let folder = tempfile::tempdir().unwrap();
    let mut with_files = 0;
    for name in [
        "quest",
        "double-sparsity",
        "loki",
        "twilight",
        "pyramid-kv",
        "hata",
        "vattention-oracle",
        "duo-attention",
    ] {
        let pipeline = load(format!("{configs}/{name}.toml")).unwrap();
        let text = to_toml(&pipeline, folder.path()).unwrap();
        let path = folder.path().join(format!("{name}.toml"));
        fs::write(&path, &text).unwrap();
        let again = load(&path).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let (mut a, mut b) = (json(&pipeline), json(&again));
        for selector in [&mut a, &mut b]
            .into_iter()
            .flat_map(|pipeline| pipeline["selectors"].as_array_mut().unwrap())
        {
            for key in ["calibration", "basis", "weights", "gates"] {
                if let Some(file) = selector[key].as_str() {
                    with_files += 1;
                    selector[key] = fs::canonicalize(file).unwrap().display().to_string().into();
                }
            }
        }
        assert_eq!(a, b, "{name}");
    }
    assert_eq!(with_files, 8, "four pipelines, twice");
}
