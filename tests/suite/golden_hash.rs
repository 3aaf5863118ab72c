//! HashAttention compared with codes, scores and picks of the reference implementation
//! (`tests/golden/reference`), with its weights and all activations.
//!
//! Many tokens have the score at which the top-k ends, and the peer's choice among them is
//! arbitrary. So expected picks are computed from the peer's scores by our rule for ties.

use std::collections::HashMap;
use std::path::Path;

use crate::common::peer::{Case, LAYER, pipeline_of, size};
use ndarray::{ArrayView1, s};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::Value;
use vattention::selectors::{Activation, HashAttention, IndexScope};
use vattention::{PipelineConfig, available_backends, plugin::Score};

/// Writes the peer's networks to a file in our format.
fn write_weights(case: &Case, layers: usize, path: &Path) {
    let mut bytes = Vec::new();
    for side in ["query", "key"] {
        for layer in 0..layers {
            for (theirs, ours) in [("matrix", "weight"), ("bias", "bias")] {
                let tensor = case.tensor(&format!("hash_weights/{side}_{theirs}.{layer}"));
                let data: Vec<u8> = tensor.iter().flat_map(|x| x.to_le_bytes()).collect();
                let name = format!("layers.{LAYER}.{side}.{layer}.{ours}");
                bytes.push((name, tensor.shape().to_vec(), data));
            }
        }
    }
    let metadata = HashMap::from([("format".to_owned(), "vattention-hash/1".to_owned())]);
    let views: Vec<_> = (bytes.iter())
        .map(|(name, shape, data)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
        })
        .collect();
    serialize_to_file(views, Some(metadata), path).unwrap();
}

/// Pipeline of a composition, with the peer's networks and its number of heavy tokens.
fn pipeline(maskers: &Value, weights: &Path) -> PipelineConfig {
    let hash = HashAttention {
        size: size(&maskers[2]["heavy_size"]),
        weights: Some(weights.into()),
        bits: None,
        codes: IndexScope::Head,
        activation: serde_json::from_value::<Activation>(maskers[2]["activation"].clone()).unwrap(),
        score: Score::Head,
    };
    pipeline_of(maskers, Box::new(hash))
}

/// The `certain` tokens, and the best `k` of the others by the peer's scores; among equal scores,
/// the lower index is better.
fn expected(scores: ArrayView1<'_, f32>, certain: impl Fn(usize) -> bool, k: usize) -> Vec<u32> {
    let (mut picks, mut rest): (Vec<usize>, Vec<usize>) =
        (0..scores.len()).partition(|&token| certain(token));
    rest.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    picks.extend(&rest[..k]);
    picks.sort_unstable();
    picks.into_iter().map(|token| token as u32).collect()
}

fn check(case: &Case, composition: &Value, weights: &Path) {
    let label = composition["label"].as_str().unwrap();
    let [scores, threshold, mask] =
        ["scores", "threshold", "mask"].map(|name| case.composition_tensor(label, name));
    let (_, query_heads, count, _) = mask.dim();
    let visible = case.visible();
    let sizes = ["sink_size", "window_size"];
    let [sink, window] =
        [0, 1].map(|i| composition["maskers"][i][sizes[i]].as_u64().unwrap() as usize);
    for backend in available_backends() {
        let output = case.run(&*backend, pipeline(&composition["maskers"], weights));
        let selection = output.selection.unwrap();
        for t in 0..count {
            for head in 0..query_heads {
                let indices = selection.row(t * query_heads + head).0;
                let (taken, left) = (mask.slice(s![0, head, t, ..]), visible[t] - window);
                let k = taken.sum() as usize - sink - window;
                assert_eq!(indices.len(), sink + window + k, "{label}");
                let scores = scores.slice(s![0, head, t, ..visible[t]]);
                let certain = |token| token < sink || token >= left;
                assert_eq!(indices, expected(scores, certain, k), "{label}: {head}, {t}");
                // The peer picks the same tokens among those that do not tie.
                let cut = threshold[[0, head, t, 0]];
                for (token, &score) in scores.iter().enumerate() {
                    let ours = indices.binary_search(&(token as u32)).is_ok();
                    assert!(score == cut || ours == (taken[token] > 0.0), "{label}: {token}");
                }
            }
        }
    }
}

#[test]
fn the_picks_follow_from_the_peers_scores() {
    let case = Case::load("a_causal");
    let scratch = tempfile::tempdir().unwrap();
    let weights = scratch.path().join("weights.safetensors");
    let mut checked = Vec::new();
    for composition in case.compositions_with("hash_attention") {
        let hash = &composition["maskers"][2];
        write_weights(&case, hash["mlp_dims"].as_array().unwrap().len() - 1, &weights);
        check(&case, composition, &weights);
        checked.push(hash["activation"].as_str().unwrap().to_owned());
    }
    checked.sort();
    assert_eq!(checked, ["gelu", "relu", "silu", "tanh"]);
}
