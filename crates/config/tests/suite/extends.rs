//! Changes of a file by another file that extends it.

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

/// Loads the last of several files, each of which extends the previous one; the first is `0.toml`.
fn load_chain(texts: &[&str]) -> Result<std::sync::Arc<PipelineConfig>, ConfigError> {
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
    let describe = |selector: &serde_json::Value| {
        format!("{} {}", selector["type"].as_str().unwrap(), selector["size"])
    };
    value.as_array().unwrap().iter().map(describe).collect()
}

/// The only problem, with its line and column in the last of the files.
#[track_caller]
fn refusal(texts: &[&str]) -> (usize, usize, String) {
    let error = load_chain(texts).unwrap_err();
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
    let pipeline = load_chain(&[BASE, &format!("dense_layers.append = [7]\n{change}")]).unwrap();
    assert_eq!(selectors(&pipeline), ["sink 1", "window 20", "oracle-top-k 3", "sink 4", "sink 5"]);
    assert_eq!(dense_layers(&pipeline), json!([0, 1, 7]));
}

#[test]
fn unset_removes_elements_and_keeps_the_indices_of_the_others() {
    let unset = "unset = [\"estimator.limit\", \"selectors.0\", \"dense_layers.1\", \"sampler\"]";
    let change = format!(
        "{unset}\n[selectors.2]\nsize = 30\n[[selectors.append]]\ntype = \"sink\"\nsize = 9"
    );
    let pipeline = load_chain(&[BASE, &change]).unwrap();
    assert_eq!(selectors(&pipeline), ["window 2", "oracle-top-k 30", "sink 9"]);
    assert_eq!(dense_layers(&pipeline), json!([0]));
    assert!(pipeline.sampler.is_none());
    let estimator = serde_json::to_value(&pipeline.estimator).unwrap();
    assert_eq!(
        (&estimator["limit"], &estimator["epsilon"]),
        (&serde_json::Value::Null, &0.1.into())
    );
}

#[test]
fn unset_tables_and_elements_may_be_set_again() {
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
    let pipeline = load_chain(&[BASE, change]).unwrap();
    assert_eq!(selectors(&pipeline), ["sink 1", "sink 8", "oracle-top-k 3"]);
    let estimator = serde_json::to_value(&pipeline.estimator).unwrap();
    assert_eq!(
        (&estimator["limit"], &estimator["epsilon"]),
        (&serde_json::Value::Null, &0.2.into())
    );
    let replace = "unset = [\"selectors\"]\n[[selectors]]\ntype = \"sink\"\nsize = 9";
    assert_eq!(selectors(&load_chain(&[BASE, replace]).unwrap()), ["sink 9"]);
}

#[test]
fn each_file_of_a_chain_changes_the_result_of_those_before() {
    let add = "[[selectors.append]]\ntype = \"sink\"\nsize = 4";
    let drop = "unset = [\"selectors.3\", \"selectors.0\"]";
    assert_eq!(selectors(&load_chain(&[BASE, add, drop]).unwrap()), ["window 2", "oracle-top-k 3"]);
    let changed =
        load_chain(&[BASE, drop.replace(".3", ".2").as_str(), "selectors.0.size = 7"]).unwrap();
    assert_eq!(selectors(&changed), ["window 7"]);
    assert_eq!(selectors(&load_chain(&["", add]).unwrap()), ["sink 4"], "no list before");
}

#[test]
fn a_list_of_tables_is_replaced_only_on_request() {
    let list = "[[selectors]]\ntype = \"sink\"\nsize = 9";
    let (line, _, error) = refusal(&[BASE, list]);
    assert_eq!(line, 2);
    for advice in ["`[[selectors.append]]`", "`[selectors.0]`", "`unset = [\"selectors\"]`"] {
        assert!(error.contains(advice), "{error}");
    }
    assert_eq!(selectors(&load_chain(&["share = \"group\"", list]).unwrap()), ["sink 9"]);
    assert!(load_chain(&[BASE, "selectors = []"]).unwrap().selectors.is_empty());
    assert_eq!(dense_layers(&load_chain(&[BASE, "dense_layers = [5]"]).unwrap()), json!([5]));
}

#[test]
fn an_unknown_key_in_unset_is_reported_with_the_existing_ones() {
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
        let (line, found, error) = refusal(&[BASE, &format!("unset = [\"{path}\"]")]);
        assert_eq!((line, found), (2, column), "{error}");
        let message = format!("`unset` names `{path}`, which is not in ");
        assert!(error.contains(&message) && error.contains(help), "{error}");
    }
    let twice = "unset = [\"selectors.1\", \"selectors.1\"]";
    assert_eq!(refusal(&[BASE, twice]).1, 25);
    for wrong in ["unset = \"sampler\"", "unset = [3]"] {
        let (.., error) = refusal(&[BASE, wrong]);
        let message = "wrong type for unset: expected a list of keys in quotes";
        assert!(error.contains(message), "{error}");
    }
    let alone = Loader::default().parse("p.toml", "unset = [\"seed\"]").unwrap_err().to_string();
    assert!(alone.contains("the file that `extends` names"), "{alone}");
}

#[test]
fn changes_of_lists_need_an_existing_index_or_a_list_to_append() {
    for (change, message) in [
        ("[selectors.append]\ntype = \"sink\"", "expected a list at selectors.append"),
        ("dense_layers.append = 3", "expected a list at dense_layers.append"),
        ("dense_layers.2 = 3", "`2` is not the number of an element of `dense_layers`"),
        ("dense_layers.after.0 = [3]", "`after` is not the number of an element of `dense_layers`"),
        ("dense_layers.00 = 3", "`00` is not the number of an element of `dense_layers`"),
    ] {
        let (line, _, error) = refusal(&[BASE, change]);
        assert!(line == 2 && error.contains(message), "{line} {error}");
    }
}

#[test]
fn set_options_can_append_and_unset() {
    let set = |changes: &[&str]| {
        let set = changes.iter().map(|&change| change.to_owned()).collect();
        Loader { set }.parse("p.toml", BASE)
    };
    let changes = ["unset=[\"selectors.0\"]", "selectors.append=[{type=\"sink\", size=5}]"];
    let pipeline = set(&changes).unwrap();
    assert_eq!(selectors(&pipeline), ["window 2", "oracle-top-k 3", "sink 5"]);
    let error = set(&["unset=[\"estimator.x\"]"]).unwrap_err().to_string();
    assert!(error.contains("`estimator.x`, which is not in the pipeline"), "{error}");
}
