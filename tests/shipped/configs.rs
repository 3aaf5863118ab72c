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
