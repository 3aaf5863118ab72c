//! The page on the fields of JSON outputs.

use std::fs;

use crate::world::{World, config, root, succeed};

/// Top-level fields of a command's JSON, as the page lists them.
fn listed<'a>(page: &'a str, command: &str) -> Vec<&'a str> {
    let section = page.split(&format!("\n## `vattention {command}`\n")).nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[test]
fn the_page_is_generated_from_the_types() {
    let page = fs::read_to_string(root("docs/json/fields.md")).unwrap();
    let generated = succeed(&["schema", "--outputs"]);
    assert_eq!(
        page, generated,
        "run `cargo run -- schema --outputs > docs/json/fields.md` after a change of a result"
    );
    assert!(!page.contains("|  |"), "a field without a meaning");
}

/// Outputs of commands have the fields that the page lists, in the same order.
#[test]
fn outputs_have_the_listed_fields() {
    let page = fs::read_to_string(root("docs/json/fields.md")).unwrap();
    let world = World::with_trace("typical");
    let oracle = config("vattention-oracle");
    let runs: [(&str, &[&str]); 4] = [
        ("compare", &["compare", &oracle]),
        ("verify", &["verify", &oracle, "--trials", "20"]),
        ("study tightness", &["study", "tightness", "--trials", "20"]),
        ("study pareto", &["study", "pareto", &oracle]),
    ];
    for (command, args) in runs {
        let mut args = args.to_vec();
        args.extend(["--trace", "trace", "--json", "out.json"]);
        world.run(&args);
        let json = world.json("out.json");
        let found: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, listed(&page, command), "{command}");
    }
}
