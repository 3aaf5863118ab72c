//! The pipelines of the repository, and the schema that editors read.

use crate::files;
use vattention::config::{Loader, load, schema};

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

/// Budgets fall as the authors' code has them (`tests/golden/pyramid.json`); on average they are the capacity, but for what whole
/// tokens round away, and none is less than its floor.
#[test]
fn pyramid_kv_divides_the_capacity_among_the_layers() {
    let golden = std::fs::read_to_string(files::root("tests/golden/pyramid.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let number = |key: &str| golden[0][key].as_u64().unwrap();
    let (capacity, window) = (number("capacity"), number("window"));
    let pipeline = load(files::root("configs/pyramid-kv.toml")).unwrap();
    let snapkv = |layer| serde_json::to_value(&pipeline.at(layer).selectors[0]).unwrap();
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
