//! Tests of the files of `weights/`, which are for the model of the shipped trace.

use std::collections::HashMap;

use ndarray::{Array3, s};
use safetensors::SafeTensors;
use vattention::plugin::{NewTokens, Picks, SelectorConfig, Site, Step, Tokens};
use vattention::selectors::{DuoAttention, HashAttention};
use vattention::trace::{Trace, TraceLayer};

use crate::common::{MODEL, root};

/// Layers of the shipped trace.
const LAYERS: [usize; 2] = [9, 23];
/// Number of layers of the model.
const ALL_LAYERS: usize = 30;
const BEST: usize = 32;

fn layer(number: usize) -> TraceLayer {
    let trace = Trace::open(&root("data/smollm2.safetensors")).unwrap();
    trace.layer(number).unwrap().unwrap()
}

/// Number of tokens at each end that pipelines always read, and that codes are not trained to find.
const EDGE: usize = 128;

/// Fraction of the best 32 keys that are picked by a selector of a sixteenth of the tokens, for
/// each query head. Tokens at both ends do not count.
fn recall(number: usize, layer: &TraceLayer, settings: &str) -> Vec<f64> {
    let config: HashAttention = toml::from_str(&format!("size = 0.0625\n{settings}")).unwrap();
    let group = MODEL.group();
    let kv_head_recall = |head: usize| {
        let site = Site { seed: 0, sequence: 0, layer: number, kv_head: head, shape: MODEL };
        let rows = |array: &Array3<f32>| array.slice(s![head, .., ..]).iter().copied().collect();
        let (keys, values): (Vec<f32>, Vec<f32>) = (rows(&layer.keys), rows(&layer.values));
        let tokens = layer.keys.dim().1;
        let keys = Tokens::new(&keys, tokens, MODEL.head_dim);
        let values = Tokens::new(&values, tokens, MODEL.value_dim);
        let mut selector = config.build(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values, classes: None });
        let mut found = vec![0.0; group];
        for (query, &visible) in layer.visible.as_ref().unwrap().iter().enumerate() {
            let queries = layer.queries.slice(s![head * group..(head + 1) * group, query, ..]);
            let queries: Vec<f32> = queries.iter().map(|x| x * MODEL.default_scale()).collect();
            let step = Step { visible, ..Step::new(&site, &queries, keys, values) };
            for (row, found) in found.iter_mut().enumerate() {
                let (mut picks, mut best) = (Picks::new(visible), Picks::new(visible));
                for picks in [&mut picks, &mut best] {
                    picks.take_range(0..EDGE);
                    picks.take_range(visible - EDGE..visible);
                }
                selector.select(&step.row(row), &mut picks);
                let mut logits = vec![0.0; visible];
                step.row(row).logits(&mut logits);
                best.take_top(BEST, &logits);
                let picked = best.iter().filter(|&token| picks.contains(token)).count();
                *found += (picked - 2 * EDGE) as f64;
            }
        }
        let all = (layer.queries.dim().1 * BEST) as f64;
        found.into_iter().map(move |found| found / all).collect::<Vec<f64>>()
    };
    (0..MODEL.kv_heads).flat_map(kv_head_recall).collect()
}

/// The recall is higher in every head, on text that the codes were not trained on.
#[test]
fn trained_codes_find_more_than_random_hyperplanes_of_the_same_bits() {
    for number in LAYERS {
        let layer = layer(number);
        let file = root("weights/smollm2-hash.safetensors");
        let trained = recall(number, &layer, &format!("weights = {:?}", file.to_str().unwrap()));
        let random = recall(number, &layer, "bits = 32");
        for (head, (trained, random)) in trained.iter().zip(&random).enumerate() {
            assert!(trained > random, "layer {number}, head {head}: {trained} against {random}");
        }
    }
}

/// The mean recall of HATA's matrices over the heads of a layer is higher.
#[test]
fn trained_matrices_find_more_than_random_hyperplanes_of_the_same_bits() {
    let mean = |recall: Vec<f64>| recall.iter().sum::<f64>() / recall.len() as f64;
    for number in LAYERS {
        let layer = layer(number);
        let file = root("weights/smollm2-hata.safetensors");
        let trained = format!("codes = \"group\"\nweights = {:?}", file.to_str().unwrap());
        let trained = mean(recall(number, &layer, &trained));
        let random = mean(recall(number, &layer, "codes = \"group\"\nbits = 128"));
        assert!(trained > random + 0.01, "layer {number}: {trained} against {random}");
    }
}

/// Half of all heads are streaming heads. Gates differ, and some are near 0.
#[test]
fn every_kv_head_of_the_model_has_a_gate() {
    let text = std::fs::read_to_string(root("weights/smollm2-gates.tsv")).unwrap();
    let gates: Vec<f64> = text.split_whitespace().map(|gate| gate.parse().unwrap()).collect();
    assert_eq!((text.lines().count(), gates.len()), (ALL_LAYERS, ALL_LAYERS * MODEL.kv_heads));
    assert!(gates.iter().all(|gate| (0.0..1.0).contains(gate)));
    let least = gates.iter().copied().fold(1.0, f64::min);
    let most = gates.iter().copied().fold(0.0, f64::max);
    assert!(least < 0.05 && most > 0.5, "{least} {most}");
    let config = format!("gates = {:?}", root("weights/smollm2-gates.tsv").to_str().unwrap());
    let config: DuoAttention = toml::from_str(&config).unwrap();
    let reads_all = |layer: usize, kv_head: usize| {
        let site = Site { seed: 0, sequence: 0, layer, kv_head, shape: MODEL };
        let selector = config.build(&site).unwrap();
        let rows = vec![0.0; 1000 * MODEL.head_dim];
        let keys = Tokens::new(&rows, 1000, MODEL.head_dim);
        let (queries, visible) = (vec![0.0; MODEL.group() * MODEL.head_dim], 1000);
        let step = Step { visible, ..Step::new(&site, &queries, keys, keys) };
        let mut picks = Picks::new(visible);
        selector.select(&step.row(0), &mut picks);
        assert!([384, 1000].contains(&picks.len()));
        picks.len() == 1000
    };
    let heads =
        (0..ALL_LAYERS).flat_map(|layer| (0..MODEL.kv_heads).map(move |head| (layer, head)));
    assert_eq!(heads.filter(|&(layer, head)| reads_all(layer, head)).count(), 45);
}

/// Weights of every layer can be read.
#[test]
fn hash_functions_are_there_for_all_layers() {
    for (file, codes) in [("hash", "head"), ("hata", "group")] {
        let file = root(&format!("weights/smollm2-{file}.safetensors"));
        let settings = format!("size = 8\ncodes = {codes:?}\nweights = {file:?}");
        let config: HashAttention = toml::from_str(&settings).unwrap();
        for layer in 0..ALL_LAYERS {
            for kv_head in 0..MODEL.kv_heads {
                let site = Site { seed: 0, sequence: 0, layer, kv_head, shape: MODEL };
                config.build(&site).unwrap();
            }
        }
    }
}

#[test]
fn channels_are_permutations() {
    let text = std::fs::read_to_string(root("weights/smollm2-channels.json")).unwrap();
    let lists: HashMap<String, Vec<Vec<usize>>> = serde_json::from_str(&text).unwrap();
    for number in 0..ALL_LAYERS {
        for part in ["q_proj", "k_proj", "qk_proj", "q_proj_group", "k_proj_group", "qk_proj_group"]
        {
            let heads = &lists[&format!("model.layers.{number}.self_attn.{part}")];
            let shared = part.ends_with("_group");
            assert_eq!(heads.len(), if shared { MODEL.kv_heads } else { MODEL.query_heads });
            for list in heads {
                let mut sorted = list.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..MODEL.head_dim).collect::<Vec<_>>());
            }
        }
    }
}

/// The first half of the channels has more than 55 % of the sum of `|q_c k_c|` in the shipped
/// trace.
#[test]
fn the_first_channels_matter_in_other_text_too() {
    let text = std::fs::read_to_string(root("weights/smollm2-channels.json")).unwrap();
    let lists: HashMap<String, Vec<Vec<usize>>> = serde_json::from_str(&text).unwrap();
    for number in LAYERS {
        let layer = layer(number);
        let prompt = layer.prompt.as_ref().unwrap();
        let end = layer.prompt_tokens.unwrap();
        let first = end - prompt.dim().1;
        for (head, list) in
            lists[&format!("model.layers.{number}.self_attn.qk_proj")].iter().enumerate()
        {
            let keys = layer.keys.slice(s![head / MODEL.group(), first..end, ..]);
            let products = &prompt.slice(s![head, .., ..]) * &keys;
            let weight = |channels: &[usize]| -> f32 {
                channels.iter().flat_map(|&c| products.column(c)).map(|x| x.abs()).sum()
            };
            let (half, all) = (weight(&list[..MODEL.head_dim / 2]), weight(list));
            assert!(half > 0.55 * all, "layer {number}, head {head}: {}", half / all);
        }
    }
}

/// Principal directions of each KV head, in rows.
fn bases(file: &SafeTensors<'_>, layer: usize) -> Array3<f32> {
    let view = file.tensor(&format!("layers.{layer}.basis")).unwrap();
    let shape = [MODEL.kv_heads, MODEL.head_dim, MODEL.head_dim];
    assert_eq!(view.shape(), shape);
    let numbers = view.data().as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    Array3::from_shape_vec(shape, numbers).unwrap()
}

#[test]
fn bases_are_orthonormal_and_concentrate_power_in_their_first_half() {
    let bytes = std::fs::read(root("weights/smollm2-basis.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for number in 0..ALL_LAYERS {
        for (head, basis) in bases(&file, number).outer_iter().enumerate() {
            for ((i, j), x) in basis.dot(&basis.t()).indexed_iter() {
                assert!((x - f32::from(i == j)).abs() < 1e-6, "{number} {head}: {i} {j} {x}");
            }
        }
    }
    for number in LAYERS {
        let layer = layer(number);
        for (head, basis) in bases(&file, number).outer_iter().enumerate() {
            let rotated = layer.keys.slice(s![head, .., ..]).dot(&basis.t());
            let power =
                |part: std::ops::Range<usize>| rotated.slice(s![.., part]).mapv(|x| x * x).sum();
            let half = MODEL.head_dim / 2;
            let (first, last) = (power(0..half), power(half..MODEL.head_dim));
            assert!(first > 3.0 * last, "layer {number}, head {head}");
        }
    }
}
