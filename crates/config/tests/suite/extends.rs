//! How a file changes the one that it extends.

use std::fs;

use serde_json::{Value, json};
use vattention_config::{ConfigError, Loader, load};
use vattention_core::PipelineConfig;
use {vattention_estimators as _, vattention_selectors as _};

const BASE: &str = r#"
dense_layers = [0, 1]
[[selectors]]
type = "sink"
size = 1
[[selectors]]
type = "window"
size = 2
[[selectors]]
type = "oracle-top-k"
size = 3
[sampler]
base = 64
[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.1
limit = 0.01
"#;

fn dense_layers(pipeline: &PipelineConfig) -> Value {
    serde_json::to_value(&pipeline.dense_layers).unwrap()
}

/// What files make, each of which extends the one before it; the first is `0.toml`.
fn chain(texts: &[&str]) -> Result<std::sync::Arc<PipelineConfig>, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    for (i, text) in texts.iter().enumerate() {
        let extends = i.checked_sub(1).map(|base| format!("extends = \"{base}.toml\"\n"));
        let text = extends.unwrap_or_default() + text;
        fs::write(folder.path().join(format!("{i}.toml")), text).unwrap();
    }
    load(folder.path().join(format!("{}.toml", texts.len() - 1)))
}

/// The types of the selectors with their sizes.
fn selectors(pipeline: &PipelineConfig) -> Vec<String> {
    let value = serde_json::to_value(&pipeline.selectors).unwrap();
    let one =
        |one: &serde_json::Value| format!("{} {}", one["type"].as_str().unwrap(), one["size"]);
    value.as_array().unwrap().iter().map(one).collect()
}

/// The only problem, with its line and column in the last of the files.
#[track_caller]
fn refusal(texts: &[&str]) -> (usize, usize, String) {
    let error = chain(texts).unwrap_err();
    assert_eq!(error.problems.len(), 1, "{error}");
    let (file, line, column) = error.problems[0].place().unwrap();
    assert!(file.ends_with(&format!("{}.toml", texts.len() - 1)), "{file}");
    (line, column, error.to_string())
}

#[test]
fn elements_are_appended() {
    let change = r#"
[selectors.1]
size = 20
[[selectors.append]]
type = "sink"
size = 4
[[selectors.append]]
type = "sink"
size = 5
"#;
    let pipeline = chain(&[BASE, &format!("dense_layers.append = [7]\n{change}")]).unwrap();
    assert_eq!(selectors(&pipeline), ["sink 1", "window 20", "oracle-top-k 3", "sink 4", "sink 5"]);
    assert_eq!(dense_layers(&pipeline), json!([0, 1, 7]));
}

#[test]
fn what_is_unset_is_gone_and_the_others_keep_their_numbers() {
    let unset = "unset = [\"estimator.limit\", \"selectors.0\", \"dense_layers.1\", \"sampler\"]";
    let change = format!(
        "{unset}\n[selectors.2]\nsize = 30\n[[selectors.append]]\ntype = \"sink\"\nsize = 9"
    );
    let pipeline = chain(&[BASE, &change]).unwrap();
    assert_eq!(selectors(&pipeline), ["window 2", "oracle-top-k 30", "sink 9"]);
    assert_eq!(dense_layers(&pipeline), json!([0]));
    assert!(pipeline.sampler.is_none());
    let estimator = serde_json::to_value(&pipeline.estimator).unwrap();
    assert_eq!(
        (&estimator["limit"], &estimator["epsilon"]),
        (&serde_json::Value::Null, &0.1.into())
    );
}

/// Of a table, or of an element of a list.
#[test]
fn what_is_unset_may_be_said_anew() {
    let change = r#"
unset = ["estimator", "selectors.1"]
[estimator]
type = "ratio"
epsilon = 0.2
delta = 0.2
[selectors.1]
type = "sink"
size = 8
"#;
    let pipeline = chain(&[BASE, change]).unwrap();
    assert_eq!(selectors(&pipeline), ["sink 1", "sink 8", "oracle-top-k 3"]);
    let estimator = serde_json::to_value(&pipeline.estimator).unwrap();
    assert_eq!(
        (&estimator["limit"], &estimator["epsilon"]),
        (&serde_json::Value::Null, &0.2.into())
    );
    let anew = "unset = [\"selectors\"]\n[[selectors]]\ntype = \"sink\"\nsize = 9";
    assert_eq!(selectors(&chain(&[BASE, anew]).unwrap()), ["sink 9"]);
}

#[test]
fn a_chain_of_files_changes_what_those_before_made() {
    let add = "[[selectors.append]]\ntype = \"sink\"\nsize = 4";
    let drop = "unset = [\"selectors.3\", \"selectors.0\"]";
    assert_eq!(selectors(&chain(&[BASE, add, drop]).unwrap()), ["window 2", "oracle-top-k 3"]);
    let changed =
        chain(&[BASE, drop.replace(".3", ".2").as_str(), "selectors.0.size = 7"]).unwrap();
    assert_eq!(selectors(&changed), ["window 7"]);
    assert_eq!(selectors(&chain(&["", add]).unwrap()), ["sink 4"], "to nothing");
}

#[test]
fn a_list_of_tables_is_replaced_only_where_that_is_said() {
    let list = "[[selectors]]\ntype = \"sink\"\nsize = 9";
    let (line, _, said) = refusal(&[BASE, list]);
    assert_eq!(line, 2);
    for way in ["`[[selectors.append]]`", "`[selectors.0]`", "`unset = [\"selectors\"]`"] {
        assert!(said.contains(way), "{said}");
    }
    assert_eq!(selectors(&chain(&["share = \"group\"", list]).unwrap()), ["sink 9"]);
    assert!(chain(&[BASE, "selectors = []"]).unwrap().selectors.is_empty());
    assert_eq!(dense_layers(&chain(&[BASE, "dense_layers = [5]"]).unwrap()), json!([5]));
}

#[test]
fn what_cannot_be_unset_is_told_with_what_there_is() {
    for (path, column, help) in [
        (
            "estimator.limt",
            10,
            "did you mean `limit`? there are `type`, `epsilon`, `delta`, `limit`",
        ),
        ("selectors.3", 10, "the list has 3 elements, 0 to 2"),
        ("selectors.0.size.x", 10, "there is nothing"),
        ("smapler", 10, "did you mean `sampler`?"),
        ("", 10, "there are `dense_layers`"),
    ] {
        let (line, found, said) = refusal(&[BASE, &format!("unset = [\"{path}\"]")]);
        assert_eq!((line, found), (2, column), "{said}");
        let message = format!("`unset` names `{path}`, which is not in ");
        assert!(said.contains(&message) && said.contains(help), "{said}");
    }
    let twice = "unset = [\"selectors.1\", \"selectors.1\"]";
    assert_eq!(refusal(&[BASE, twice]).1, 25);
    for wrong in ["unset = \"sampler\"", "unset = [3]"] {
        let (.., said) = refusal(&[BASE, wrong]);
        assert!(said.contains("wrong type for unset: expected a list of keys in quotes"), "{said}");
    }
    let alone = Loader::default().parse("p.toml", "unset = [\"seed\"]").unwrap_err().to_string();
    assert!(alone.contains("the file that `extends` names"), "{alone}");
}

#[test]
fn what_is_added_must_be_a_list_at_an_element_that_there_is() {
    for (change, message) in [
        ("[selectors.append]\ntype = \"sink\"", "expected a list at selectors.append"),
        ("dense_layers.append = 3", "expected a list at dense_layers.append"),
        ("dense_layers.2 = 3", "`2` is not the number of an element of `dense_layers`"),
        ("dense_layers.after.0 = [3]", "`after` is not the number of an element of `dense_layers`"),
        ("dense_layers.00 = 3", "`00` is not the number of an element of `dense_layers`"),
    ] {
        let (line, _, said) = refusal(&[BASE, change]);
        assert!(line == 2 && said.contains(message), "{line} {said}");
    }
}

#[test]
fn a_set_can_do_the_same() {
    let set = |changes: &[&str]| {
        let set = changes.iter().map(|&change| change.to_owned()).collect();
        Loader { set }.parse("p.toml", BASE)
    };
    let changes = ["unset=[\"selectors.0\"]", "selectors.append=[{type=\"sink\", size=5}]"];
    let pipeline = set(&changes).unwrap();
    assert_eq!(selectors(&pipeline), ["window 2", "oracle-top-k 3", "sink 5"]);
    let said = set(&["unset=[\"estimator.x\"]"]).unwrap_err().to_string();
    assert!(said.contains("`estimator.x`, which is not in the pipeline"), "{said}");
}
