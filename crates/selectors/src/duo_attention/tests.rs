//! Laws of selectors, head classes by a transcription of the authors' code
//! (`tests/golden/duo.json`), and files that are refused.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use tempfile::TempDir;
use vattention_core::Shape;
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::{OracleTopK, SnapKv};

fn write(path: &Path, gates: &[Vec<f64>]) {
    let mut text = String::new();
    for layer in gates {
        let numbers: Vec<String> = layer.iter().map(|gate| format!("{gate:.18e}")).collect();
        writeln!(text, "{}", numbers.join("\t")).unwrap();
    }
    std::fs::write(path, text).unwrap();
}

/// Gate files of two layers with one KV head each. The head of the testkit, in the first layer,
/// streams by one file and retrieves by the other.
static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("streams"), &[vec![0.2], vec![0.3]]);
    write(&folder.path().join("retrieves"), &[vec![0.3], vec![0.2]]);
    folder
});

fn config(class: &str, of: Option<Box<dyn SelectorConfig>>) -> DuoAttention {
    let (sink, recent) = (Size::Tokens(3), Size::Tokens(4));
    DuoAttention { gates: FILES.path().join(class), streaming: half(), sink, recent, of }
}

fn oracle() -> OracleTopK {
    serde_json::from_str(r#"{"size": 5}"#).unwrap()
}

fn snapkv() -> SnapKv {
    serde_json::from_str(r#"{"size": 9, "window": 2}"#).unwrap()
}

vattention_testkit::laws!(streaming, config("streams", Some(Box::new(oracle()))));
vattention_testkit::laws!(everything, config("retrieves", None));
vattention_testkit::laws!(oracle_at_retrieval_heads, config("retrieves", Some(Box::new(oracle()))));
vattention_testkit::laws!(snapkv_at_retrieval_heads, config("retrieves", Some(Box::new(snapkv()))));

fn pick(config: &dyn SelectorConfig, head: &Head, visible: usize) -> Vec<usize> {
    let mut selector = config.build(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    let mut picks = Picks::new(visible);
    selector.select(&head.step(visible).row(1), &mut picks);
    picks.iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// A streaming head reads a sink and a window; a retrieval head also reads the picks of the
    /// other selector.
    #[test]
    fn heads_read_the_tokens_of_their_class(head in heads(60), visible in 1_usize..=60) {
        let visible = visible.min(head.tokens);
        let ends: Vec<usize> = (0..visible).filter(|&t| t < 3 || t + 4 >= visible).collect();
        for of in [None, Some(Box::new(oracle()) as _)] {
            prop_assert_eq!(&pick(&config("streams", of), &head, visible), &ends);
        }
        prop_assert_eq!(pick(&config("retrieves", None), &head, visible).len(), visible);
        let found = pick(&config("retrieves", Some(Box::new(oracle()))), &head, visible);
        prop_assert!(ends.iter().all(|token| found.contains(token)));
        prop_assert_eq!(found.len(), visible.min(ends.len() + 5));
    }

    /// The number of streaming heads follows from the share; they have the smallest gates, and
    /// among equal gates the later heads stream.
    #[test]
    fn the_smallest_gates_stream(
        gates in prop::collection::vec(prop::collection::vec(0_u8..4, 3), 1..6),
        share in 0.01..0.99,
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let quarters = |layer: Vec<u8>| layer.into_iter().map(|g| f64::from(g) / 4.0).collect();
        let gates: Vec<Vec<f64>> = gates.into_iter().map(quarters).collect();
        write(file.path(), &gates);
        let classes = classes(file.path(), gates.len(), 3, share).concat();
        let count = classes.iter().filter(|&&retrieval| !retrieval).count();
        prop_assert_eq!(count, (share * (classes.len() - 1) as f64).ceil() as usize);
        let flat = gates.concat();
        for (i, j) in (0..flat.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
            // `j` is before `i`.
            match (classes[j], classes[i]) {
                (false, true) => prop_assert!(flat[i] > flat[j]),
                (true, false) => prop_assert!(flat[j] >= flat[i]),
                _ => {}
            }
        }
    }
}

/// Returns true for each head that retrieves, `[layers][heads]`.
fn classes(file: &Path, layers: usize, heads: usize, share: f64) -> Vec<Vec<bool>> {
    let gates = GateFile::open(file).unwrap();
    let shape = Shape { query_heads: 2 * heads, kv_heads: heads, head_dim: 2, value_dim: 2 };
    let retrieves = |layer, kv_head| {
        let site = Site { seed: 0, sequence: 0, layer, kv_head, shape };
        !gates.streams(&site, Fraction::try_from(share).unwrap()).unwrap()
    };
    (0..layers).map(|layer| (0..heads).map(|head| retrieves(layer, head)).collect()).collect()
}

/// Case in the file that `tools/make_selectors_golden.py` writes.
#[derive(Deserialize)]
struct Case {
    gates: Vec<Vec<f64>>,
    streaming: f64,
    retrieval: Vec<Vec<bool>>,
}

#[test]
fn classes_are_those_of_the_authors_code() {
    let cases = include_str!("../../../../tests/golden/duo.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 15);
    let file = tempfile::NamedTempFile::new().unwrap();
    for Case { gates, streaming, retrieval } in cases {
        write(file.path(), &gates);
        assert_eq!(classes(file.path(), gates.len(), gates[0].len(), streaming), retrieval);
    }
}

#[test]
fn layers_with_unknown_gates_do_not_count() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "nan\tnan\n0.9\t-3\nnan\tnan\n7\t0.4\n").unwrap();
    let gates = GateFile::open(file.path()).unwrap();
    let shape = Shape { query_heads: 2, kv_heads: 2, head_dim: 2, value_dim: 2 };
    let streams = |layer, kv_head| {
        gates.streams(&Site { seed: 0, sequence: 0, layer, kv_head, shape }, half())
    };
    let found = [(1, 0), (1, 1), (3, 0), (3, 1)].map(|(layer, head)| streams(layer, head).unwrap());
    assert_eq!(found, [false, true, false, true]);
    assert!(
        streams(2, 1).unwrap_err().ends_with("the gates of layer 2 are `nan`: expected numbers")
    );
    assert!(streams(4, 0).unwrap_err().ends_with("lines for 4 layers: expected one for layer 4"));
    let shape = Shape { query_heads: 3, kv_heads: 3, ..shape };
    let wide = Site { seed: 0, sequence: 0, layer: 1, kv_head: 0, shape };
    let refused = gates.streams(&wide, half()).unwrap_err();
    assert!(
        refused.ends_with("there are 2 gates in a line: expected 3, the KV heads"),
        "{refused}"
    );
}

#[test]
fn errors_name_the_gate_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = |text: &str| {
        std::fs::write(file.path(), text).unwrap();
        let config = DuoAttention { gates: file.path().into(), ..config("streams", None) };
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
        error
    };
    assert!(refused("").contains("there is no gate"));
    assert!(refused("nan\tnan\n").contains("there is no gate"));
    assert!(
        refused("0.1\t0.2\n0.3\tx\n").contains("line 2 has `x`: expected numbers between tabs")
    );
    assert!(refused("0.1\t0.2\n0.3\n").contains("lines have 2 and 1 gates"));
    let missing = DuoAttention { gates: "no/such/file".into(), ..config("streams", None) };
    assert!(missing.check().unwrap_err().to_string().contains("no/such/file"));
}

/// The index of the inner selector is counted, and its size is tunable.
#[test]
fn the_inner_selector_is_counted_and_tunable() {
    let head = Head::new(50, 8, 1, Texture::Gaussian);
    let mut of_snapkv = config("retrieves", Some(Box::new(snapkv())));
    let mut selector = of_snapkv.build(head.site()).unwrap();
    selector.append(&head.part(0..50));
    assert_eq!(selector.index_bytes(), 200);
    selector.observe(&head.prompt());
    assert_eq!(selector.index_bytes(), 36);
    assert!(matches!(of_snapkv.tunable(), Some(Tunable::Sizes(sizes)) if sizes.len() == 1));
    assert!(config("retrieves", None).tunable().is_none());
}
