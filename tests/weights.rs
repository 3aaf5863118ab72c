//! The files of `weights/`, which are for the model of the shipped trace.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;

use ndarray::{Array3, s};
use safetensors::SafeTensors;
use vattention::eval::{Layer, Trace};
use vattention::selectors::HashAttention;
use vattention::{NewTokens, Picks, SelectorConfig, Site, Step, Tokens};

use common::{MODEL, root};

const LAYERS: [usize; 2] = [2, 4];
const BEST: usize = 32;

fn layer(number: usize) -> Layer {
    let trace = Trace::open(&root("data/minilm.safetensors")).unwrap();
    trace.layer(number).unwrap().unwrap()
}

/// The share of each query's 32 best keys among the picks of a sixteenth, by head.
fn recall(number: usize, layer: &Layer, settings: &str) -> Vec<f64> {
    let config: HashAttention = toml::from_str(&format!("size = 0.0625\n{settings}")).unwrap();
    let of_head = |head: usize| {
        let site = Site { seed: 0, sequence: 0, layer: number, kv_head: head, shape: MODEL };
        let rows = |array: &Array3<f32>| array.slice(s![head, .., ..]).iter().copied().collect();
        let (keys, values): (Vec<f32>, Vec<f32>) = (rows(&layer.keys), rows(&layer.values));
        let visible = layer.keys.dim().1;
        let keys = Tokens::new(&keys, visible, MODEL.head_dim);
        let values = Tokens::new(&values, visible, MODEL.value_dim);
        let mut worker = config.build(&site).unwrap();
        worker.append(&NewTokens { first: 0, keys, values });
        let queries = layer.queries.slice(s![head, .., ..]);
        let found = queries.outer_iter().map(|query| {
            let queries = query.mapv(|x| x * MODEL.default_scale()).to_vec();
            let step = Step { site: &site, queries: &queries, keys, values, visible, step: 0 };
            let (mut picks, mut best) = (Picks::new(visible), Picks::new(visible));
            worker.select(&step.row(0), &mut picks);
            let mut logits = vec![0.0; visible];
            step.row(0).logits(&mut logits);
            best.take_top(BEST, &logits);
            best.iter().filter(|&(token, _)| picks.contains(token)).count() as f64 / BEST as f64
        });
        let found: Vec<f64> = found.collect();
        found.iter().sum::<f64>() / found.len() as f64
    };
    (0..MODEL.kv_heads).map(of_head).collect()
}

/// On text that they were not trained on, in every head.
#[test]
fn trained_codes_find_more_than_random_hyperplanes_of_as_many_bits() {
    for number in LAYERS {
        let layer = layer(number);
        let file = root("weights/minilm-hash.safetensors");
        let trained = recall(number, &layer, &format!("weights = {:?}", file.to_str().unwrap()));
        let random = recall(number, &layer, "bits = 32");
        for (head, (trained, random)) in trained.iter().zip(&random).enumerate() {
            assert!(trained > random, "layer {number}, head {head}: {trained} against {random}");
        }
    }
}

#[test]
fn channels_are_permutations() {
    let text = std::fs::read_to_string(root("weights/minilm-channels.json")).unwrap();
    let lists: HashMap<String, Vec<Vec<usize>>> = serde_json::from_str(&text).unwrap();
    for number in LAYERS {
        for part in ["q_proj", "k_proj", "qk_proj", "q_proj_group", "k_proj_group", "qk_proj_group"]
        {
            let heads = &lists[&format!("model.layers.{number}.self_attn.{part}")];
            assert_eq!(heads.len(), MODEL.query_heads);
            for list in heads {
                let mut sorted = list.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..MODEL.head_dim).collect::<Vec<_>>());
            }
        }
    }
}

/// The first channels carry more of `|q_c k_c|` in the shipped trace than others would.
#[test]
fn the_first_channels_matter_in_other_text_too() {
    let text = std::fs::read_to_string(root("weights/minilm-channels.json")).unwrap();
    let lists: HashMap<String, Vec<Vec<usize>>> = serde_json::from_str(&text).unwrap();
    for number in LAYERS {
        let layer = layer(number);
        let prompt = layer.prompt.as_ref().unwrap();
        let first = layer.keys.dim().1 - prompt.dim().1;
        for (head, list) in
            lists[&format!("model.layers.{number}.self_attn.qk_proj")].iter().enumerate()
        {
            let keys = layer.keys.slice(s![head, first.., ..]);
            let products = &prompt.slice(s![head, .., ..]) * &keys;
            let weight = |channels: &[usize]| -> f32 {
                let of = |&c: &usize| products.column(c).iter().map(|x| x.abs()).sum::<f32>();
                channels.iter().map(of).sum()
            };
            let (half, all) = (weight(&list[..16]), weight(list));
            assert!(half > 0.55 * all, "layer {number}, head {head}: {}", half / all);
        }
    }
}

#[test]
fn bases_are_orthonormal_and_hold_more_in_their_first_half() {
    let bytes = std::fs::read(root("weights/minilm-basis.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let dim = MODEL.head_dim;
    for number in LAYERS {
        let view = file.tensor(&format!("layers.{number}.basis")).unwrap();
        assert_eq!(view.shape(), [MODEL.kv_heads, dim, dim]);
        let numbers =
            view.data().as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect::<Vec<f32>>();
        let bases = Array3::from_shape_vec((MODEL.kv_heads, dim, dim), numbers).unwrap();
        let layer = layer(number);
        for (head, basis) in bases.outer_iter().enumerate() {
            for ((i, j), x) in basis.dot(&basis.t()).indexed_iter() {
                assert!((x - f32::from(i == j)).abs() < 1e-6, "{number} {head}: {i} {j} {x}");
            }
            let rotated = layer.keys.slice(s![head, .., ..]).dot(&basis.t());
            let power =
                |part: std::ops::Range<usize>| rotated.slice(s![.., part]).mapv(|x| x * x).sum();
            assert!(power(0..16) > 3.0 * power(16..32), "layer {number}, head {head}");
        }
    }
}
