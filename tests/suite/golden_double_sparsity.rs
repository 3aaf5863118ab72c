//! Double Sparsity compared with scores and picks of the reference implementation
//! (`tests/golden/reference`), with its file of channels.
//!
//! The peer quantises the channels of queries like those of keys. We do not, because that saves
//! nothing and loses precision. So these tests quantise the queries' channels as the peer does.

use crate::common;
use std::path::PathBuf;

use crate::common::peer::{Case, LAYER, pipeline_of, size};
use ndarray::{Array3, ArrayView1, ArrayViewMut1, s};
use serde_json::Value;
use vattention::index::LabelBits;
use vattention::selectors::{DoubleSparsity, Importance, IndexScope};
use vattention::{
    Size, available_backends,
    plugin::{NewTokens, Picks, Score, SelectorConfig, Site, Step, Tokens},
};

/// Selector of a composition, with another size.
fn double_sparsity(masker: &Value, head_dim: usize, size: Size) -> DoubleSparsity {
    let channels = head_dim / masker["group_factor"].as_u64().unwrap() as usize;
    // In the peer's files, 16 bits mean exact labels.
    let bits = masker["label_bits"].as_u64().filter(|&bits| bits < 16).unwrap_or(0);
    assert_eq!(masker["channel_selection"], "qk_proj");
    DoubleSparsity {
        size,
        calibration: calibration(masker),
        channels: channels.try_into().unwrap(),
        label_bits: LabelBits::try_from(bits).unwrap(),
        by: Importance::Qk,
        labels: IndexScope::Head,
        score: Score::Head,
    }
}

/// Path of the peer's file, which ranks the channels.
fn calibration(masker: &Value) -> PathBuf {
    common::golden("reference").join(masker["channels"].as_str().unwrap())
}

/// Rounds a vector like the peer's quantiser.
fn quantise(numbers: &mut [f32], bits: u8) {
    let [least, most] = [f32::min, f32::max].map(|f| numbers.iter().copied().reduce(f).unwrap());
    let last = f32::from(u8::MAX >> (8 - bits));
    let scale = last / if most > least { most - least } else { 1.0 };
    for x in numbers {
        *x = ((*x - least) * scale).round_ties_even().clamp(0.0, last) / scale + least;
    }
}

/// Queries whose selected channels are quantised like the peer's.
fn queries(case: &Case, config: &DoubleSparsity) -> Array3<f32> {
    let mut queries = case.input("queries");
    if config.label_bits.get() == 0 {
        return queries;
    }
    let channels = case.tensor("double_sparsity_channels");
    for (head, mut rows) in queries.outer_iter_mut().enumerate() {
        let selected: Vec<usize> =
            (0..config.channels.get()).map(|i| channels[[head, i]] as usize).collect();
        let bits = config.label_bits.get();
        rows.outer_iter_mut().for_each(|row| quantise_channels(row, &selected, bits));
    }
    queries
}

fn quantise_channels(mut row: ArrayViewMut1<'_, f32>, channels: &[usize], bits: u8) {
    let mut numbers: Vec<f32> = channels.iter().map(|&channel| row[channel]).collect();
    quantise(&mut numbers, bits);
    channels.iter().zip(numbers).for_each(|(&channel, x)| row[channel] = x);
}

/// Number of tokens in the peer's sink, and in its window.
const ENDS: usize = 16;

/// Number of tokens that a composition picks in addition: a fraction of all tokens, visible or not.
fn heavy(case: &Case, maskers: &Value) -> usize {
    assert_eq!([&maskers[0]["sink_size"], &maskers[1]["window_size"]], [ENDS, ENDS]);
    size(&maskers[2]["heavy_size"]).to_tokens(case.input("keys").dim().1)
}

/// Compositions of all cases, with their labels and maskers.
fn compositions(cases: &[Case]) -> impl Iterator<Item = (&Case, &str, &Value)> {
    cases.iter().flat_map(|case| {
        let ours = case.compositions_with("double_sparsity");
        ours.map(move |c| (case, c["label"].as_str().unwrap(), &c["maskers"]))
    })
}

/// Pipelines pick the same tokens as the peer on every backend. The case without a mask is left
/// out, because the peer's windows there do not end at the last visible token.
#[test]
fn pipelines_pick_the_tokens_of_the_peer() {
    let (cases, mut checked) = ([Case::load("a_causal")], 0);
    for (case, label, maskers) in compositions(&cases) {
        let (mask, visible) = (case.composition_tensor(label, "mask"), case.visible());
        let heavy = Size::Tokens(heavy(case, maskers));
        let config = double_sparsity(&maskers[2], case.shape().head_dim, heavy);
        let queries = queries(case, &config);
        let pipeline = std::sync::Arc::new(pipeline_of(maskers, Box::new(config)));
        for backend in available_backends() {
            let output = case.run_queries(&*backend, &pipeline, queries.view());
            let selection = output.selection.unwrap();
            let (_, query_heads, count, _) = mask.dim();
            for (t, head) in (0..count).flat_map(|t| (0..query_heads).map(move |head| (t, head))) {
                let taken = mask.slice(s![0, head, t, ..visible[t]]);
                let taken: Vec<u32> =
                    (0_u32..).zip(&taken).filter(|(_, p)| **p > 0.0).map(|(i, _)| i).collect();
                assert_eq!(selection.row(t * query_heads + head).0, taken, "{label}: {head}, {t}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, cases.len() * 3 * 8 * 3 * available_backends().len());
}

/// For every `k` at which rounding cannot matter, the picks are the best `k` tokens by the peer's
/// scores. After its sink and window, they are its mask.
#[test]
fn tokens_rank_as_by_the_peers_scores() {
    let (cases, mut cuts, mut skipped) = (["a_causal", "a_nomask"].map(Case::load), 0, 0);
    for (case, label, maskers) in compositions(&cases) {
        let (shape, visible) = (case.shape(), case.visible());
        let config = double_sparsity(&maskers[2], shape.head_dim, Size::Tokens(1));
        let (queries, keys) = (queries(case, &config), case.input("keys"));
        let [scores, mask] = ["scores", "mask"].map(|name| case.composition_tensor(label, name));
        let (count, heavy) = (visible.len(), heavy(case, maskers));
        for head in 0..shape.query_heads {
            let (kv_head, member) = (head / shape.group(), head % shape.group());
            let site = Site { seed: 0, sequence: 0, layer: LAYER, kv_head, shape };
            let keys = keys.slice(s![kv_head, .., ..]).to_owned();
            let keys = Tokens::new(keys.as_slice().unwrap(), keys.nrows(), keys.ncols());
            let mut selector = config.build(&site).unwrap();
            selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            for (t, &visible) in visible.iter().enumerate() {
                let group = kv_head * shape.group()..(kv_head + 1) * shape.group();
                let queries: Vec<f32> = queries.slice(s![group, t, ..]).iter().copied().collect();
                let step = Step { visible, ..Step::new(&site, &queries, keys, keys) };
                let row = step.row(member);
                let scores = scores.slice(s![0, head, t, ..visible]);
                let order = falling(scores);
                let mut ends = Picks::new(visible);
                let position = keys.len() - count + t + 1;
                ends.take_range(0..ENDS);
                ends.take_range(position - ENDS..position);
                (0..heavy).for_each(|_| selector.select(&row, &mut ends));
                let mask = mask.slice(s![0, head, t, ..visible]);
                assert!((0..visible).all(|token| ends.contains(token) == (mask[token] > 0.0)));
                // One more token each time, as picks only grow.
                let mut picks = Picks::new(visible);
                for k in 1..visible {
                    selector.select(&row, &mut picks);
                    assert_eq!(picks.len(), k);
                    if scores[order[k - 1]] - scores[order[k]] < 1e-4 {
                        skipped += 1;
                        continue;
                    }
                    cuts += 1;
                    assert!(order[..k].iter().all(|&token| picks.contains(token)), "{label}: {k}");
                }
            }
        }
    }
    assert!(cuts >= 20 * skipped, "{skipped} of {cuts} cuts are too close to compare");
}

fn falling(scores: ArrayView1<'_, f32>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}
