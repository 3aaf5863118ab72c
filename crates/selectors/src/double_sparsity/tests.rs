//! Laws of selectors, definition of the scores, and calibration files that are refused.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;
use vattention_core::{Shape, Step, Tokens};
use vattention_testkit::{Head, heads};

use super::*;
use crate::OracleTopK;

/// Calibration files for the heads of the testkit, `{dim}.json`, with two query heads of one KV
/// head.
static FILES: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    for dim in [2, 8, 20] {
        let lists = json!({
            "model.layers.0.self_attn.qk_proj": [permutation(dim, 3), permutation(dim, 7)],
            "model.layers.0.self_attn.qk_proj_group": [permutation(dim, 11)],
            "model.layers.1.self_attn.qk_proj": "a list of another layer, which is not parsed",
        });
        std::fs::write(file(folder.path(), dim), lists.to_string()).unwrap();
    }
    folder
});

fn file(folder: &Path, dim: usize) -> PathBuf {
    folder.join(format!("{dim}.json"))
}

/// Channels `step` apart; no channel count may divide the step.
fn permutation(dim: usize, step: usize) -> Vec<usize> {
    (0..dim).map(|i| (i * step + 1) % dim).collect()
}

fn config(
    dim: usize,
    channels: usize,
    bits: u64,
    labels: IndexScope,
    score: Score,
) -> DoubleSparsity {
    DoubleSparsity {
        size: Size::Tokens(7),
        calibration: file(FILES.path(), dim),
        channels: NonZeroUsize::new(channels).unwrap(),
        label_bits: LabelBits::try_from(bits).unwrap(),
        by: Importance::Qk,
        labels,
        score,
    }
}

/// Config that uses half of the channels of any head; its file is named by the dimension.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Half {
    bits: u64,
    labels: IndexScope,
    score: Score,
}

#[typetag::serde(name = "half")]
impl SelectorConfig for Half {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let dim = site.shape.head_dim;
        config(dim, dim / 2, self.bits, self.labels, self.score).build(site)
    }
}

vattention_testkit::laws!(
    head_labels,
    Half { bits: 4, labels: IndexScope::Head, score: Score::Head }
);
vattention_testkit::laws!(
    head_labels_group_scores,
    Half { bits: 2, labels: IndexScope::Head, score: Score::Group }
);
vattention_testkit::laws!(
    group_labels,
    Half { bits: 3, labels: IndexScope::Group, score: Score::Head }
);
vattention_testkit::laws!(
    group_labels_group_scores,
    Half { bits: 0, labels: IndexScope::Group, score: Score::Group }
);

fn build_filled(config: &DoubleSparsity, head: &Head) -> DoubleSparsitySelector {
    let mut selector = config.build_selector(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    selector
}

const LABELS: [IndexScope; 2] = [IndexScope::Head, IndexScope::Group];

/// Channels of a member's labels.
fn label_channels(dim: usize, channels: usize, labels: IndexScope, member: usize) -> Vec<usize> {
    let step = if labels == IndexScope::Group { 11 } else { [3, 7][member] };
    permutation(dim, step)[..channels].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// With all channels and exact labels, scores equal the logits and picks those of the oracle.
    #[test]
    fn all_exact_channels_equal_the_oracle(head in heads(200)) {
        // Products of whole numbers are exact in any order.
        let round = |x: &f32| x.round().clamp(-9.0, 9.0);
        let keys = head.part(0..head.tokens).keys.to_array(0..head.tokens).mapv(|x| round(&x));
        let keys = Tokens::new(keys.as_slice().unwrap(), head.tokens, head.dim);
        let queries: Vec<f32> = head.step(1).queries.iter().map(round).collect();
        let step = Step { queries: &queries, keys, ..head.step(head.tokens.div_ceil(2)) };
        let cases = LABELS.into_iter().flat_map(|l| [(l, Score::Head), (l, Score::Group)]);
        for (labels, score) in cases {
            let config = config(head.dim, head.dim, 0, labels, score);
            let mut selector = config.build_selector(head.site()).unwrap();
            selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            let oracle = OracleTopK { size: Size::Tokens(7), score };
            for row in step.rows() {
                let mut picks = Picks::new(step.visible);
                picks.take_all((0..step.visible).step_by(3));
                let mut expected = picks.clone();
                selector.select(&row, &mut picks);
                oracle.select(&row, &mut expected);
                prop_assert_eq!(picks.indices(), expected.indices());
            }
        }
    }

    /// A score is within half a grid step for each `|q_c|` of the exact product over the label's
    /// channels, and a group's score is the sum of its heads'.
    #[test]
    fn scores_are_products_of_rounded_labels(head in heads(80), bits in 0_u64..=8, half: bool) {
        let channels = if half { head.dim / 2 } else { head.dim };
        let step = head.step(head.tokens);
        let keys = step.keys.to_array(0..head.tokens).mapv(f64::from);
        for labels in LABELS {
            let config = |score| config(head.dim, channels, bits, labels, score);
            let selector = build_filled(&config(Score::Head), &head);
            let mut sums = vec![0.0; head.tokens];
            for row in step.rows() {
                let labelled = label_channels(head.dim, channels, labels, row.member());
                let scores = selector.scores(&row);
                for (token, &score) in scores.iter().enumerate() {
                    let label: Vec<f64> = labelled.iter().map(|&c| keys[[token, c]]).collect();
                    let least = label.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = label.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let levels = f64::from((1_u32 << bits) - 1);
                    let step = if bits == 0 { 0.0 } else { (most - least) / levels };
                    let q = |i: usize| f64::from(row.query()[labelled[i]]);
                    let exact: f64 = label.iter().enumerate().map(|(i, k)| q(i) * k).sum();
                    let weight: f64 = (0..channels).map(|i| q(i).abs()).sum();
                    let rounding = 1e-5 * weight * least.abs().max(most.abs());
                    let error = (f64::from(score) - exact).abs();
                    prop_assert!(error <= step / 2.0 * weight + rounding, "{error}");
                    sums[token] += score;
                }
            }
            let group = build_filled(&config(Score::Group), &head);
            for (score, sum) in group.scores(&step.row(1)).iter().zip(sums) {
                prop_assert!((score - sum).abs() <= 1e-4 * (1.0 + sum.abs()), "{score}, {sum}");
            }
        }
    }
}

#[test]
fn the_index_has_a_label_per_list_of_channels() {
    let head = Head::new(64, 20, 1, vattention_testkit::Texture::Gaussian);
    for (bits, bytes) in [(0, 40), (1, 10 / 8 + 8), (2, 10 / 4 + 8), (4, 5 + 8), (8, 10 + 8)] {
        let config = |labels| config(20, 10, bits, labels, Score::Head);
        let [per_head, per_group] =
            LABELS.map(|labels| build_filled(&config(labels), &head).index_bytes());
        assert_eq!(per_head, 2 * per_group);
        assert_eq!(per_group / 64, bytes, "{bits} bits");
    }
}

/// Reads the channels at KV head 1 of layer 5, with 4 query heads, 2 KV heads and 4 channels.
fn channels(config: &DoubleSparsity) -> Result<Vec<Vec<usize>>, String> {
    let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 4, value_dim: 1 };
    config.channels(&Site { seed: 0, sequence: 0, layer: 5, kv_head: 1, shape })
}

fn lists() -> Value {
    json!({
        "model.layers.5.self_attn.q_proj": [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]],
        "model.layers.5.self_attn.k_proj": [[0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3], [0, 3, 1, 2]],
        "model.layers.5.self_attn.k_proj_group": [[0, 1, 2, 3], [3, 2, 1, 0]],
    })
}

#[test]
fn each_head_has_the_channels_of_its_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 4);
    std::fs::write(&path, lists().to_string()).unwrap();
    let read = |by, labels| {
        let config = config(4, 2, 4, labels, Score::Head);
        channels(&DoubleSparsity { calibration: path.clone(), by, ..config })
    };
    assert_eq!(read(Importance::Q, IndexScope::Head).unwrap(), [[2, 0], [3, 0]]);
    assert_eq!(read(Importance::K, IndexScope::Head).unwrap(), [[0, 2], [0, 3]]);
    assert_eq!(read(Importance::K, IndexScope::Group).unwrap(), [[3, 2]]);
    // With one query head per KV head, the list of that query head is read.
    let shape = Shape { query_heads: 4, kv_heads: 4, head_dim: 4, value_dim: 1 };
    let site = Site { seed: 0, sequence: 0, layer: 5, kv_head: 3, shape };
    let single_head = DoubleSparsity {
        calibration: path.clone(),
        by: Importance::Q,
        ..config(4, 3, 4, IndexScope::Group, Score::Head)
    };
    assert_eq!(single_head.channels(&site).unwrap(), [[3, 0, 1]]);
}

#[test]
fn errors_name_the_file_and_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let config = DoubleSparsity {
        calibration: file(folder.path(), 4),
        by: Importance::K,
        ..config(4, 2, 4, IndexScope::Group, Score::Head)
    };
    let refused = |config: &DoubleSparsity| {
        let error = channels(config).unwrap_err();
        let (file, reason) = error.split_once(": ").unwrap();
        assert_eq!(file, config.calibration.display().to_string());
        reason.to_owned()
    };
    let write = |change: &dyn Fn(&mut Value)| {
        let mut lists = lists();
        change(&mut lists);
        std::fs::write(&config.calibration, lists.to_string()).unwrap();
    };
    assert!(refused(&config).contains("No such file"));
    write(&|_| {});
    let other = DoubleSparsity { by: Importance::Qk, ..config.clone() };
    assert_eq!(refused(&other), "there is no `model.layers.5.self_attn.qk_proj_group`");
    let group = "model.layers.5.self_attn.k_proj_group";
    write(&|lists| lists[group] = json!([[0, 1, 2, 3]]));
    assert_eq!(refused(&config), format!("`{group}` has 1 heads: expected 2"));
    for (list, length) in [
        (json!([3, 2, 1]), 3),
        (json!([3, 2, 1, 1]), 4),
        (json!([3, 2, 1, 4]), 4),
        (json!([0, 1, 2, 3, 4]), 5),
    ] {
        write(&|lists| lists[group][0] = list.clone());
        let reason = format!("{length} channels for head 0: expected each of 0 to 3 once");
        assert_eq!(refused(&config), format!("`{group}` has {reason}"));
    }
    write(&|lists| lists[group] = json!([[0, 1, 2, -3], []]));
    assert!(refused(&config).contains("invalid value: integer `-3`"));
    write(&|lists| *lists = json!([1]));
    assert!(refused(&config).contains("expected an object with lists of channels for each layer"));
    let text = lists().to_string();
    for length in [0, 1, text.len() - 1] {
        std::fs::write(&config.calibration, &text[..length]).unwrap();
        refused(&config);
    }
    std::fs::write(&config.calibration, text + "x").unwrap();
    assert!(refused(&config).contains("trailing characters"));
    let wide = DoubleSparsity { channels: NonZeroUsize::new(5).unwrap(), ..config };
    assert_eq!(
        channels(&wide).unwrap_err(),
        "`channels` is 5: expected at most 4, the channels of a key"
    );
}
