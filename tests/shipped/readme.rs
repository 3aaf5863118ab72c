//! Checks that commands, tables, pipelines and code in the README and in docs match the repository.

use crate::files;
use vattention::all_backends;

fn read(path: &str) -> String {
    std::fs::read_to_string(files::root(path)).unwrap()
}

/// Cells of the table under a heading of the guide, row by row.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = read("docs/guide.md");
    let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap();
    let section = section.split("\n#").next().unwrap().replace("\\|", "¦");
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(|c| c.trim().into()).collect();
    rows.map(cells).collect()
}

fn column(heading: &str, index: usize) -> Vec<String> {
    table(heading).into_iter().map(|row| row[index].trim_matches('`').to_owned()).collect()
}

#[test]
fn the_table_of_backends_is_complete() {
    let mut backends = all_backends();
    backends.sort_by_key(|backend| backend.name().to_owned());
    assert!(column("Backends", 0).iter().eq(backends.iter().map(|backend| backend.name())));
    assert!(column("Backends", 1).iter().eq(backends.iter().map(|backend| backend.summary())));
}

#[test]
fn the_commands_are_what_ci_runs() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    let commands: Vec<&str> =
        readme.split("```sh\n").skip(1).map(|block| block.split("\n```").next().unwrap()).collect();
    assert_eq!(commands.len(), 2, "the main command and all tests");
    for command in commands {
        assert!(ci.contains(&format!("\nstep {command}\n")), "CI does not run `{command}`");
    }
    let page = read("docs/evaluation.md");
    let evaluation =
        page.lines().find_map(|line| line.strip_prefix("$ cargo run --release -- evaluate"));
    let evaluation = format!("\nstep cargo run --release -- evaluate{}\n", evaluation.unwrap());
    assert!(ci.contains(&evaluation), "CI does not run the evaluation that is shown");
}

#[test]
fn the_selector_in_the_docs_is_that_of_the_example() {
    let page = read("docs/embedding.md");
    let shown = page.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(read("examples/custom_plugins/src/every_nth.rs").contains(shown.trim()));
}

#[test]
fn pipelines_in_the_docs_can_be_loaded() {
    for (page, selectors) in [("README.md", 2), ("docs/guide.md", 3)] {
        let text = read(page);
        let text = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let pipeline = vattention::config::Loader::default().parse("page.toml", text).unwrap();
        assert_eq!(pipeline.selectors.len(), selectors, "{page}");
        assert!(pipeline.estimator.is_some(), "{page}");
    }
}

#[test]
fn the_page_of_the_trace_has_its_size() {
    let bytes = std::fs::metadata(files::root("data/smollm2.safetensors")).unwrap().len();
    assert!(read("data/README.md").contains(&format!("size    {bytes} bytes")));
}

/// The guide shows a file, and a second one that extends it.
#[test]
fn the_extended_pipeline_in_the_guide_can_be_loaded() {
    let page = read("docs/guide.md");
    let files = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in ["base.toml", "child.toml"].into_iter().zip(files) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let pipeline = vattention::config::load(folder.path().join("child.toml")).unwrap();
    let types = pipeline.selectors.iter().map(|selector| selector.typetag_name());
    assert!(types.eq(["sink", "oracle-top-k", "window"]));
    assert_eq!(serde_json::to_value(&pipeline.dense_layers).unwrap(), serde_json::json!([0, 1]));
}
