//! Tests of the repository's pipelines, and of the schema for editors.

use crate::files;
use vattention::config::{Loader, load, pipeline_names, schema};

#[test]
fn every_config_can_be_loaded_written_and_loaded_again() {
    let mut names = Vec::new();
    for path in files::configs() {
        let pipeline = load(&path).unwrap();
        assert!(pipeline.conflicts().is_empty());
        let text = toml::to_string(&*pipeline).unwrap();
        let again = Loader::default().parse("again.toml", &text).unwrap();
        assert_eq!(format!("{pipeline:?}"), format!("{again:?}"), "{}", path.display());
        names.push(pipeline.name.clone());
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), files::configs().len(), "two pipelines have one name");
}

/// A pipeline file that needs no weights can be loaded by its name.
#[test]
fn files_without_weights_are_built_in() {
    let mut expected = Vec::new();
    for path in files::configs() {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.contains("\"../weights/") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let (by_name, files) = Loader::default().load_with_files(&name).unwrap();
            assert_eq!(format!("{by_name:?}"), format!("{:?}", load(&path).unwrap()), "{name}");
            assert!(files.is_empty(), "{name}: {files:?}");
            expected.push(name);
        }
    }
    expected.sort();
    assert!(expected.len() > 40);
    assert_eq!(pipeline_names(), expected);
}

#[test]
fn names_are_resolved_after_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let extending = write("mine.toml", "extends = \"quest\"\nseed = 7\n");
    let pipeline = load(&extending).unwrap();
    let quest = load("quest").unwrap();
    assert_eq!(pipeline.seed, 7);
    assert_eq!(format!("{:?}", pipeline.selectors), format!("{:?}", quest.selectors));
    write("quest", "seed = 5\n");
    assert!(load(&extending).unwrap().selectors.is_empty(), "a file is preferred");
    assert!(load(folder.path().join("priority")).is_err(), "a path with a folder is no name");
}

#[test]
fn an_error_about_an_unknown_name_lists_similar_names() {
    let problem = |name: &str| load(name).unwrap_err().to_string();
    let near = problem("priorty");
    assert!(near.starts_with("priorty: cannot be read: "), "{near}");
    assert!(near.contains("similar names are `priority`"), "{near}");
    assert!(problem("vattention").contains("`vattention-strict`"));
    assert!(problem("zzzzzzzzzzzz").contains("the built-in pipelines are `ark-vale`"));
    let suffixed = problem("priority.toml");
    assert!(
        suffixed.contains("the built-in pipeline of this name is called `priority`"),
        "{suffixed}"
    );
    assert!(!problem("nowhere/priority.toml.bak").contains("built-in"));
    let extended = Loader::default().parse("p.toml", "extends = \"quset\"\n").unwrap_err();
    assert!(extended.to_string().contains("similar names are `quest`"), "{extended}");
}

#[test]
fn the_schema_is_fresh() {
    let committed = std::fs::read_to_string(files::root("configs/pipeline.schema.json")).unwrap();
    let fresh = format!("{:#}\n", schema());
    assert!(committed == fresh, "run `cargo run -- schema > configs/pipeline.schema.json`");
    for path in files::configs() {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("#:schema pipeline.schema.json\n"), "{}", path.display());
    }
}

/// Budgets fall like those of the authors' code (`tests/golden/pyramid.json`). Their mean is the
/// capacity, up to rounding to whole tokens, and no budget is below the floor.
#[test]
fn pyramid_kv_divides_the_capacity_among_the_layers() {
    let golden = std::fs::read_to_string(files::root("tests/golden/pyramid.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let number = |key: &str| golden[0][key].as_u64().unwrap();
    let (capacity, window) = (number("capacity"), number("window"));
    let pipeline = load(files::root("configs/pyramid-kv.toml")).unwrap();
    let snapkv = |layer| serde_json::to_value(&pipeline.layer_config(layer).selectors[0]).unwrap();
    let sizes: Vec<u64> = (0..30)
        .map(|layer| {
            assert_eq!(snapkv(layer)["window"], window);
            snapkv(layer)["size"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(serde_json::json!(sizes), golden[0]["kept"]);
    let (sum, floor) = (sizes.iter().sum::<u64>(), window + (capacity - window) / 20);
    assert!(sum.abs_diff(30 * capacity) <= 30 * 30 / 2, "{sum}");
    assert!(sizes.is_sorted_by(|a, b| a > b) && sizes[29] >= floor, "{sizes:?}");
}
