//! Loading of pipeline files, and places of their problems.

use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;
use vattention_config::{ConfigError, Loader, listing, load, schema};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, PipelineConfig, Result, Row, Selector, SelectorConfig, Share, Site, pipeline::Layers,
    plugin::ComponentKind, register, typetag,
};
use vattention_estimators as _;
use vattention_selectors as _;

/// A selector that picks no tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Coin {}

#[typetag::serde(name = "coin")]
impl SelectorConfig for Coin {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Coin {
    fn select(&self, _: &Row<'_>, _: &mut Picks) {}
}

register!(Selector, "coin", Coin, "heads or tails");

/// A selector with a field that names a file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileSelector {
    /// A file.
    #[schemars(extend("format" = "path"))]
    file: Option<std::path::PathBuf>,
    /// A text that is not a path.
    word: String,
}

#[typetag::serde(name = "reads")]
impl SelectorConfig for FileSelector {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(Coin {}))
    }
}

register!(Selector, "reads", FileSelector, "a file");

fn parse(text: &str) -> std::sync::Arc<PipelineConfig> {
    Loader::default().parse("p.toml", text).unwrap()
}

fn refuse(text: &str) -> ConfigError {
    Loader::default().parse("p.toml", text).unwrap_err()
}

/// Line and column of the only problem.
#[track_caller]
fn place(error: &ConfigError) -> (usize, usize) {
    assert_eq!(error.problems.len(), 1, "{error}");
    let (name, line, column) = error.problems[0].place().unwrap();
    assert_eq!(name, "p.toml");
    (line, column)
}

/// Temporary folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn places_count_lines_and_characters_from_one() {
    assert_eq!(place(&refuse("share = \"heads\"")), (1, 9));
    assert_eq!(place(&refuse("# é\n\n  seed = true")), (3, 10));
    assert_eq!(place(&refuse("estimator = { \"type\" = \"fixéd\" }")), (1, 24));
    let after = "estimator = { type = \"ratio\", size = 1, delta = 0.1, \"é\" = 1 }";
    assert_eq!(place(&refuse(after)), (1, 54));
    let before = "selectors = [{ type = \"sink\", \"size\" = \"é\", other = 1 }]";
    let places: Vec<_> = refuse(before).problems.iter().map(|p| p.place().unwrap().2).collect();
    assert_eq!(places, [40, 45], "é is one character");
}

#[test]
fn settings_of_the_file_are_loaded() {
    let pipeline = parse("seed = 7\nshare = \"head\"\ndense_layers = [0, 3]");
    assert_eq!((pipeline.seed, pipeline.share), (7, Share::Head));
    assert_eq!(pipeline.dense_layers, [Layers::One(0), Layers::One(3)]);
    assert_eq!((parse("").seed, parse("").share), (0, Share::Group));
}

#[test]
fn a_conflict_is_reported_at_its_part() {
    let sink = "[[selectors]]\ntype = \"sink\"\nsize = 4\n\n";
    let idle = "[sampler]\ntype = \"uniform\"\n";
    assert_eq!(place(&refuse(&format!("{sink}{idle}"))), (5, 2));
    parse(&format!("{sink}{idle}[estimator]\ntype = \"ratio\"\nepsilon = 0.1\ndelta = 0.1"));
}

#[test]
fn files_that_extend_each_other_are_refused() {
    for files in [
        &[("a.toml", &b"extends = \"b.toml\""[..]), ("b.toml", b"extends = \"a.toml\"")][..],
        &[
            ("a.toml", b"extends = \"b.toml\""),
            ("b.toml", b"extends = \"c.toml\""),
            ("c.toml", b"extends = \"./b.toml\""),
        ],
    ] {
        let folder = folder(files);
        let error = load(folder.path().join("a.toml")).unwrap_err();
        assert!(error.to_string().contains("`extends` leads back to"), "{error}");
        assert_eq!(error.problems.len(), 1, "{error}");
    }
}

#[test]
fn a_sampler_is_not_blamed_for_an_estimator_that_cannot_be_read() {
    let error = refuse("[sampler]\nbase = 64\n[estimator]\ntype = \"magic\"");
    assert_eq!(place(&error), (4, 8));
}

#[test]
fn a_broken_line_has_only_syntax_errors() {
    let error = refuse("seed = -1 -2\nshare = \"heads\"");
    let messages: Vec<_> =
        error.problems.iter().map(|p| (p.place().unwrap().1, p.message())).collect();
    assert!(
        messages.iter().all(|(line, text)| (*line == 1) == text.starts_with("TOML syntax")),
        "{error}"
    );
    assert!(messages.iter().any(|(line, _)| *line == 2), "{error}");
}

/// Paths in a file that another one extends are relative to the extended file.
#[test]
fn paths_are_relative_to_the_file_that_contains_them() {
    let selector = "[[selectors]]\ntype = \"reads\"\nword = \"w\"\nfile = \"w.bin\"";
    let folder = folder(&[]);
    fs::create_dir(folder.path().join("deep")).unwrap();
    fs::write(folder.path().join("deep/w.bin"), "").unwrap();
    fs::write(folder.path().join("deep/base.toml"), selector).unwrap();
    fs::write(folder.path().join("child.toml"), "extends = \"deep/base.toml\"").unwrap();
    let file = |pipeline: std::sync::Arc<PipelineConfig>| {
        let value = serde_json::to_value(&pipeline.selectors[0]).unwrap();
        assert_eq!(value["word"], "w", "is not a file");
        value["file"].as_str().unwrap().to_owned()
    };
    let expected = folder.path().join("deep/w.bin").display().to_string();
    assert_eq!(file(load(folder.path().join("child.toml")).unwrap()), expected);
    let set = Loader { set: vec!["selectors.0.file=tests/suite/load.rs".to_owned()] };
    assert_eq!(file(set.load(folder.path().join("child.toml")).unwrap()), "tests/suite/load.rs");
    assert_eq!(file(parse(&selector.replace("w.bin", &expected))), expected);
    let within = twilight(&format!("{{ type = \"reads\", word = \"w\", file = \"{expected}\" }}"));
    let value = serde_json::to_value(&parse(&within).selectors[0]).unwrap();
    assert_eq!((&value["of"]["file"], &value["of"]["word"]), (&expected[..].into(), &"w".into()));
    assert_eq!(place(&refuse(&selector.replace("\"w.bin\"", "7"))), (4, 8));
}

/// Reading a pipeline checks that its files exist and that the selectors accept them.
#[test]
fn bad_files_are_reported_at_the_fields_that_name_them() {
    let reads = "[[selectors]]\ntype = \"reads\"\nword = \"w\"\nfile = \"FILE\"";
    for (file, reason) in [("none/w.bin", "No such file"), (".", "it is not a file")] {
        let error = refuse(&reads.replace("FILE", file));
        assert_eq!(place(&error), (4, 8));
        assert!(error.to_string().contains(&format!("{file} cannot be read: {reason}")), "{error}");
    }
    let folder = folder(&[("broken", b"{}")]);
    let broken = folder.path().join("broken").display().to_string();
    for (fields, reason) in [
        ("type = \"hash-attention\"\nsize = 4\nweights", "not a safetensors file"),
        ("type = \"loki\"\nsize = 4\nbasis", "not a safetensors file"),
        ("type = \"double-sparsity\"\nsize = 4\ncalibration", "there are no lists of channels"),
    ] {
        let error = refuse(&format!("[[selectors]]\n{fields} = \"{broken}\""));
        assert_eq!(place(&error).0, 4, "{error}");
        assert!(error.to_string().contains(&format!("{broken}: {reason}")), "{error}");
    }
    let inner = format!("{{ type = \"loki\", size = 4, basis = \"{broken}\" }}");
    let error = refuse(&twilight(&inner));
    assert!(error.to_string().contains("loki: "), "{error}");
    place(&error);
}

#[test]
fn an_unreadable_base_is_reported_at_extends_beside_other_problems() {
    let child = b"seed = -1\nextends = \"base.toml\"\nshare = \"heads\"";
    let folder = folder(&[("base.toml", b"\xff"), ("child.toml", child)]);
    let error = load(folder.path().join("child.toml")).unwrap_err();
    let lines: Vec<_> = error.problems.iter().map(|p| p.place().unwrap().1).collect();
    assert_eq!(lines, [1, 2, 3], "{error}");
    assert!(error.problems[1].message().contains("base.toml: cannot be read"), "{error}");
}

#[test]
fn changes_accept_bare_words_but_not_extends() {
    let set =
        |change: &str, text: &str| Loader { set: vec![change.to_owned()] }.parse("p.toml", text);
    let pipeline = set("estimator.type=ratio", "[estimator]\nsize = 5\ndelta = 0.1").unwrap();
    assert!(pipeline.estimator.is_some());
    assert_eq!(set("share=head", "").unwrap().share, Share::Head);
    assert_eq!(set("name = two words", "").unwrap().name, "two words");
    let error = set("extends=base.toml", "").unwrap_err();
    assert!(error.to_string().contains("`extends` cannot be set"), "{error}");
}

/// A value whose quotes the shell removed is read as text; a malformed number is an error.
#[test]
fn a_change_that_toml_cannot_read_is_text() {
    let set = |change: &str| Loader { set: vec![change.to_owned()] }.parse("p.toml", "");
    for text in ["8-bit", "2-bit", "2024-01-01", "12:30:00", "1.2.3", "5 %", "True", "../x.toml"] {
        assert_eq!(set(&format!("name={text}")).unwrap().name, text);
    }
    for (change, expected) in [
        ("name=.5", "TOML syntax"),
        ("name=\"half", "TOML syntax"),
        ("name=[1", "TOML syntax"),
        ("name=", "TOML syntax"),
        ("name=7", "wrong type for name: expected text in quotes"),
        ("seed=8-bit", "wrong type for seed: expected a whole number, 0 or more"),
    ] {
        let error = set(change).unwrap_err().to_string();
        assert!(error.contains(expected), "{change}: {error}");
    }
}

/// Changes of a field without the key of its component, and of a component that the file lacks.
#[test]
fn changes_of_components_are_explained() {
    let set = |change: &str| {
        let error = Loader { set: vec![change.to_owned()] }.parse("p.toml", "").unwrap_err();
        (error.problems[0].message().to_owned(), error.problems[0].help().unwrap().to_owned())
    };
    let (message, help) = set("epsilon=0.2");
    assert_eq!(message, "unknown key `epsilon`");
    assert!(help.starts_with("did you mean `estimator.epsilon`? the keys here are"), "{help}");
    let help = set("size=4").1;
    assert!(help.starts_with("did you mean `estimator.size` or `selectors.0.size`?"), "{help}");
    let help = set("sead=4").1;
    assert!(help.starts_with("did you mean `seed`?"), "{help}");
    let (message, help) = set("estimator.epsilon=0.2");
    assert_eq!(message, "the pipeline has no estimator");
    assert!(help.starts_with("`--set estimator.type=NAME` adds one; known: "), "{help}");
    // In a file, a component without a type has a missing field.
    assert_eq!(
        refuse("[estimator]\nepsilon = 0.2").problems[0].message(),
        "missing field `type` in estimator"
    );
}

/// Commands create the files of some components.
#[test]
fn a_missing_file_is_reported_with_the_command_that_creates_it() {
    for (fields, command) in [
        ("type = \"loki\"\nbasis = \"none\"", "calibrate loki"),
        ("type = \"hash-attention\"\nweights = \"none\"", "train-hash"),
        ("type = \"hash-attention\"\nweights = \"none\"\ncodes = \"group\"", "train-hata"),
        ("type = \"double-sparsity\"\ncalibration = \"none\"", "calibrate double-sparsity"),
    ] {
        let text = format!("[[selectors]]\nsize = 4\n{fields}\n");
        let error = refuse(&text);
        let help = error.problems[0].help().unwrap();
        let expected = format!("`vattention {command} --trace TRACES -o none` makes it");
        assert!(error.is_unreadable_file() && help.starts_with(&expected), "{error}");
        assert!(error.summary().starts_with("none cannot be read: "), "{}", error.summary());
        assert!(!refuse(&format!("sead = 1\n{text}")).is_unreadable_file());
    }
    let duo = refuse("[[selectors]]\ntype = \"duo-attention\"\ngates = \"none\"\n");
    assert!(duo.summary().contains("`vattention calibrate duo-attention"), "{duo}");
    let own = refuse("[[selectors]]\ntype = \"reads\"\nword = \"w\"\nfile = \"none\"\n");
    assert!(own.is_unreadable_file() && own.problems[0].help().is_none(), "{own}");
}

#[test]
fn every_wrong_element_of_a_list_is_reported() {
    let error = refuse("dense_layers = [-1, 2, \"x\"]");
    let places: Vec<_> = error.problems.iter().map(|p| p.place().unwrap().2).collect();
    assert_eq!(places, [17, 24], "{error}");
}

#[test]
fn a_name_is_one_line() {
    for name in ["two\\nlines", "\\u001b[31mred", "bell\\u0007"] {
        assert_eq!(place(&refuse(&format!("name = \"{name}\""))), (1, 8));
    }
    assert_eq!(parse("name = \"vAttention (ratio) é\"").name, "vAttention (ratio) é");
}

/// List of one selector, which has another one in its field `of`.
fn twilight(inner: &str) -> String {
    format!("selectors = [{{ type = \"twilight\", mass = 0.8, of = {inner} }}]")
}

#[test]
fn selectors_may_be_nested() {
    let deep = twilight("{ type = \"twilight\", of = { size = 4, type = \"sink\" }, mass = 0.5 }");
    let pipeline = parse(&deep);
    let value = serde_json::to_value(&pipeline.selectors[0]).unwrap();
    assert_eq!(value["of"]["of"], serde_json::json!({ "type": "sink", "size": 4 }));
    let set = Loader { set: vec!["selectors.0.of.of.size = 9".to_owned()] };
    let changed = set.parse("p.toml", &deep).unwrap();
    assert!(format!("{:?}", changed.selectors).contains("Tokens(9)"));
}

#[test]
fn problems_of_nested_selectors_are_reported_at_their_place() {
    for (inner, column, message) in [
        ("{ type = \"sink\" }", 52, "missing field `size` in selectors[0].of"),
        ("{ size = 3 }", 52, "missing field `type` in selectors[0].of"),
        ("{ type = \"sunk\", size = 3 }", 61, "unknown name `sunk` at selectors[0].of.type"),
        ("{ type = \"sink\", size = 3, sise = 4 }", 79, "unknown field `sise` in selectors[0].of"),
        ("{ type = \"sink\", size = -3 }", 76, "bad value for selectors[0].of.size"),
        ("3", 52, "wrong type for selectors[0].of: expected a table"),
        ("\"quest\"", 52, "wrong type for selectors[0].of: expected a table"),
    ] {
        let error = refuse(&twilight(inner));
        assert_eq!(place(&error), (1, column), "{error}");
        assert!(error.problems[0].message().starts_with(message), "{error}");
        let knows_fields = error.problems[0].help().is_none_or(|help| !help.contains("twilight`"));
        assert!(knows_fields || message.contains("type"), "{error}");
    }
    // All problems are reported, those of the outer selector too.
    let inner = "{ type = \"sink\", size = 0, sise = 4, more = 1 }, score = \"hed\"";
    let error = refuse(&twilight(inner));
    let places: Vec<_> = error.problems.iter().map(|p| p.place().unwrap().2).collect();
    assert_eq!(places, [76, 79, 89, 109], "{error}");
    let unknown = twilight("{ type = \"sunk\", size = 3 }, score = \"hed\"");
    let error = refuse(&unknown.replace("0.8", "8"));
    assert_eq!(error.problems.len(), 3, "{error}");
}

#[test]
fn the_advice_for_a_name_in_place_of_a_table_is_the_table() {
    let error = refuse(&twilight("\"quest\""));
    let help = error.problems[0].help().unwrap();
    assert!(help.starts_with("write `of = { type = \"quest\" }`"), "{help}");
}

/// The small stack of a test's thread suffices for reading and for refusing.
#[test]
fn the_depth_of_nested_tables_is_limited() {
    let nested = |depth: usize| {
        let open = "{ type = \"twilight\", mass = 0.5, of = ".repeat(depth);
        twilight(&format!("{open}{{ type = \"sink\", size = 4 }}{}", " }".repeat(depth)))
    };
    parse(&nested(25));
    let error = refuse(&nested(60));
    assert!(error.to_string().contains(".of.of: expected a table"), "{error}");
    for depth in [100, 10_000] {
        refuse(&nested(depth));
    }
    let dotted = "of.".repeat(70);
    let open = format!("{{ {dotted}of = ").repeat(70);
    refuse(&twilight(&format!("{open}3{}", " }".repeat(70))));
    let key = format!("selectors.0.{}size = 3", "of.".repeat(5000));
    assert!(Loader { set: vec![key] }.parse("p.toml", &nested(1)).is_err());
}

#[test]
fn listings_describe_the_values_of_optional_fields() {
    let listing = listing(ComponentKind::Selector);
    let takes = |selector: &str, field: &str| {
        let entry = listing.iter().find(|entry| entry.name == selector).unwrap();
        entry.fields.iter().find(|entry| entry.name == field).unwrap().takes.clone()
    };
    assert_eq!(takes("loki", "rank"), "whole number, at least 1");
    assert_eq!(takes("hash-attention", "bits"), "whole number, 1 to 128");
    assert_eq!(takes("hash-attention", "weights"), "file");
    assert_eq!(takes("loki", "basis"), "file");
}

/// Messages describe the allowed numbers in words, not by types of the programming language.
#[test]
fn numbers_out_of_range_are_refused_in_words() {
    let mut refused = 0;
    for entry in listing(ComponentKind::Selector) {
        let numbers = entry.fields.iter().filter(|field| field.takes.starts_with("whole number"));
        for (field, bad) in numbers.flat_map(|field| [(field, "-1"), (field, "2.5")]) {
            let text =
                format!("[[selectors]]\ntype = \"{}\"\n{} = {bad}\n", entry.name, field.name);
            let error = Loader::default().parse("x.toml", &text).unwrap_err().to_string();
            let line =
                error.lines().find(|line| line.contains(&format!(".{}", field.name))).unwrap();
            let words = ["a whole number", "must be"];
            assert!(words.iter().any(|words| line.contains(words)), "{line}");
            assert!(!line.contains("nonzero"), "{line}");
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn listings_and_the_schema_describe_fields_that_are_selectors() {
    let schema = schema();
    let selectors = schema["$defs"]["Selector"]["oneOf"].as_array().unwrap();
    let named = |name: &str| {
        let is_named = |selector: &&Value| selector["properties"]["type"]["const"] == name;
        selectors.iter().find(is_named).unwrap()
    };
    assert!(named("sink")["properties"]["size"].is_object());
    let of = &named("twilight")["properties"]["of"];
    assert_eq!(of["$ref"], "#/$defs/Selector");
    assert_eq!(schema["else"]["properties"]["selectors"]["items"]["$ref"], "#/$defs/Selector");
    let listing = listing(ComponentKind::Selector);
    let twilight = listing.iter().find(|entry| entry.name == "twilight").unwrap();
    let of = twilight.fields.iter().find(|field| field.name == "of").unwrap();
    assert_eq!((&of.takes[..], of.required), ("another selector's table", true));
    assert!(of.meaning.starts_with("Selector"), "{}", of.meaning);
}

/// A seed may be any u64, though TOML requires of its readers only the range of i64.
#[test]
fn a_seed_has_sixty_four_bits() {
    for (text, seed) in [
        ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", 1 << 63),
        ("18_446_744_073_709_551_615", u64::MAX),
        ("0xffff_ffff_ffff_ffff", u64::MAX),
    ] {
        let pipeline = parse(&format!("seed = {text}"));
        assert_eq!(pipeline.seed, seed);
        let set = Loader { set: vec![format!("seed={text}")] };
        assert_eq!(set.parse("p.toml", "").unwrap().seed, seed);
        let written = serde_json::to_string(&*pipeline).unwrap();
        assert_eq!(serde_json::from_str::<PipelineConfig>(&written).unwrap().seed, seed);
        assert_eq!(parse(&toml::to_string(&*pipeline).unwrap()).seed, seed);
    }
    for text in ["18446744073709551616", "-1", "\"7\"", "1.8446744073709552e19"] {
        let error = refuse(&format!("seed = {text}"));
        assert_eq!(place(&error), (1, 8));
        assert!(error.to_string().contains("expected a whole number, 0 or more"), "{error}");
    }
}
