//! Completion scripts, manual pages, and components in `list`.

use crate::world::World;

#[test]
fn every_shell_gets_completions() {
    let world = World::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = world.succeed(&format!("completions {shell}"));
        for word in ["compare", "completions", "--trace", "--queries"] {
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    world.refuse("completions tcsh", "possible values: bash");
}

#[test]
fn every_command_gets_a_manual_page() {
    let world = World::new();
    let said = world.succeed("man pages/section1");
    assert!(said.starts_with("wrote manual pages to pages/section1"), "{said}");
    for name in ["vattention", "vattention-compare", "vattention-study-pareto"] {
        let page = std::fs::read_to_string(world.path(&format!("pages/section1/{name}.1")));
        let page = page.unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}");
    }
    let page = std::fs::read_to_string(world.path("pages/section1/vattention-verify.1")).unwrap();
    assert!(page.contains("undecided"), "the page includes the text below the options");
    world.write("file", "");
    world.refuse("man file", "error: file: ");
}

#[test]
fn one_component_is_shown_with_its_fields() {
    let world = World::new();
    let shown = world.succeed("list quest");
    assert!(shown.starts_with("Selectors, [[selectors]]\n\n  quest: "), "{shown}");
    assert!(shown.contains("    page ") && !shown.contains("loki"), "{shown}");
    let json = world.succeed("list ratio --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["estimators"][0]["name"], "ratio");
    for kind in ["selectors", "samplers", "backends"] {
        assert_eq!(json[kind].as_array().unwrap().len(), 0, "{kind}");
    }
    assert!(world.succeed("list cpu").starts_with("Backends, --backend\n\n  cpu "));
    for (name, expected) in [
        ("Quest", "no component `Quest`; did you mean `quest`?"),
        ("rato", "no component `rato`; did you mean `ratio`?"),
        ("top-k", "an exact top-k is `oracle-top-k` here."),
        ("nothing-like-it", "`vattention list` shows all"),
    ] {
        world.refuse(&format!("list {name}"), expected);
    }
}
