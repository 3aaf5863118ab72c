//! README and docs/pipelines.md say what the registry says, and the README's commands are the ones that are run.

use crate::files;
use vattention::{
    all_backends,
    plugin::{ComponentKind, components},
};

fn read(path: &str) -> String {
    std::fs::read_to_string(files::root(path)).unwrap()
}

/// The rows of the table under a heading of the page on pipeline files, as cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = read("docs/pipelines.md");
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
fn the_tables_are_the_registry() {
    for (heading, kind) in [
        ("Selectors", ComponentKind::Selector),
        ("Samplers", ComponentKind::Sampler),
        ("Estimators", ComponentKind::Estimator),
    ] {
        let known = components(kind);
        let names: Vec<&str> = known.iter().map(|component| component.name).collect();
        let summaries: Vec<&str> = known.iter().map(|component| component.summary).collect();
        assert_eq!(column(heading, 0), names);
        assert_eq!(column(heading, 2), summaries);
    }
    let mut backends = all_backends();
    backends.sort_by_key(|backend| backend.name().to_owned());
    assert!(column("Backends", 0).iter().eq(backends.iter().map(|backend| backend.name())));
    assert!(column("Backends", 1).iter().eq(backends.iter().map(|backend| backend.summary())));
}

/// Every field that a message would list stands in the table, and no other.
#[test]
fn the_fields_are_those_that_can_be_written() {
    for (heading, section) in
        [("Selectors", "[[selectors]]"), ("Samplers", "[sampler]"), ("Estimators", "[estimator]")]
    {
        let rows = table(heading);
        for row in &rows {
            let fields = match row[1].strip_prefix("as `") {
                Some(other) => {
                    let same = |row: &&Vec<String>| row[0] == format!("`{other}");
                    rows.iter().find(same).unwrap()[1].clone()
                }
                None => row[1].clone(),
            };
            let text =
                format!("{section}\ntype = \"{}\"\nno_such_field = 1\n", row[0].trim_matches('`'));
            let error = vattention::config::Loader::default().parse("x.toml", &text).unwrap_err();
            let help = error.problems.iter().find_map(|problem| problem.help()).unwrap();
            let allowed: Vec<&str> = help
                .split_once(" are ")
                .unwrap()
                .1
                .split(", ")
                .map(|f| f.trim_matches('`'))
                .collect();
            let mut listed: Vec<&str> = fields
                .split(", ")
                .map(|field| field.trim_start_matches('`').split('`').next().unwrap())
                .collect();
            let mut known = allowed.clone();
            listed.sort_unstable();
            known.sort_unstable();
            assert_eq!(listed, known, "{}", row[0]);
        }
    }
}

#[test]
fn the_commands_are_what_ci_runs() {
    let (readme, ci) = (read("README.md"), read(".ci/run"));
    let commands: Vec<&str> =
        readme.split("```sh\n").skip(1).map(|block| block.split("\n```").next().unwrap()).collect();
    assert_eq!(commands.len(), 2, "one runs the main job, one passes all tests");
    for command in commands {
        assert!(ci.contains(&format!("\nstep {command}\n")), "CI does not run `{command}`");
    }
    let evaluation =
        readme.lines().find_map(|line| line.strip_prefix("$ cargo run --release -- evaluate"));
    let evaluation = format!("\nstep cargo run --release -- evaluate{}\n", evaluation.unwrap());
    assert!(ci.contains(&evaluation), "CI does not run the evaluation that is shown");
}

/// The selector that the README shows is the one of the example.
#[test]
fn the_custom_selector_is_the_examples() {
    let readme = read("README.md");
    let shown = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(read("examples/custom_plugins/src/every_nth.rs").contains(shown.trim()));
}

/// The pipelines that are explained can be loaded.
#[test]
fn the_pipeline_files_are_ones() {
    for (page, selectors) in [("README.md", 2), ("docs/pipelines.md", 3)] {
        let text = read(page);
        let text = text.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let pipeline = vattention::config::Loader::default().parse("page.toml", text).unwrap();
        assert_eq!(pipeline.selectors.len(), selectors, "{page}");
        assert!(pipeline.estimator.is_some(), "{page}");
    }
}

/// The page of the shipped trace speaks of the file that is there.
#[test]
fn the_trace_is_of_the_size_that_its_page_says() {
    let bytes = std::fs::metadata(files::root("data/smollm2.safetensors")).unwrap().len();
    assert!(read("data/README.md").contains(&format!("size    {bytes} bytes")));
}

/// The files that the page on them shows are read, the second on top of the first.
#[test]
fn a_file_on_top_of_another_can_be_read() {
    let page = read("docs/pipelines.md");
    let files = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in ["base.toml", "child.toml"].into_iter().zip(files) {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let pipeline = vattention::config::load(folder.path().join("child.toml")).unwrap();
    let types = pipeline.selectors.iter().map(|selector| selector.typetag_name());
    assert!(types.eq(["sink", "quest", "oracle-top-k", "window"]));
    assert_eq!(serde_json::to_value(&pipeline.dense_layers).unwrap(), serde_json::json!([0, 1]));
}
