//! How many of the best keys the codes find, asked of the selector itself.

use std::ops::Range;

use ndarray::s;
use vattention_core::{NewTokens, Picks, Selector, SelectorConfig, Shape, Site, Step, Tokens};
use vattention_selectors::HashAttention;
use vattention_trace::TraceLayer;

use super::HeldOut;
use super::labels::{middle, top};
use crate::{Corpus, Result};

/// The mean share of a query's best keys among the picks, of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRecall {
    /// The layer.
    pub layer: usize,
    /// With the trained maps, for each query head.
    pub trained: Vec<f64>,
    /// With random hyperplanes and as many bits.
    pub hyperplanes: Vec<f64>,
}

/// Measures a selector of trained weights on what was held out: of the `best` keys with the largest `q·k`, leaving
/// out the ends of the context, how many are among its picks, as many as a sixteenth of the tokens.
///
/// # Errors
/// A file or traces that do not fit.
pub fn recall(
    trained: &HashAttention,
    best: usize,
    corpus: &Corpus,
    held_out: HeldOut<'_>,
) -> Result<Vec<LayerRecall>> {
    let hyperplanes = HashAttention { weights: None, ..trained.clone() };
    let judged = if let HeldOut::Traces(other) = held_out { other } else { corpus };
    let of_layer = |(number, shape): (usize, Shape)| -> Result<LayerRecall> {
        let none = vec![HitMean::default(); shape.query_heads];
        let mut found = [none.clone(), none];
        let scale = judged.scale().unwrap_or(shape.default_scale());
        for layer in judged.layer(number) {
            let layer = layer?;
            let queries = layer.queries.dim().1;
            let first = match held_out {
                HeldOut::Traces(_) => 0,
                HeldOut::LastQueries => held_out.learnt(queries),
            };
            for (config, means) in [trained, &hyperplanes].into_iter().zip(&mut found) {
                add(config, number, &layer, first..queries, scale, best, means)?;
            }
        }
        let [trained, hyperplanes] = found.map(|means| means.iter().map(HitMean::get).collect());
        Ok(LayerRecall { layer: number, trained, hyperplanes })
    };
    judged.layers().map(of_layer).collect()
}

#[derive(Clone, Default)]
struct HitMean {
    total: f64,
    count: usize,
}

impl HitMean {
    fn add(&mut self, x: f64) {
        self.total += x;
        self.count += 1;
    }

    fn get(&self) -> f64 {
        self.total / self.count as f64
    }
}

/// Adds what one selector finds for some queries of one layer of one trace, for each query head.
fn add(
    config: &HashAttention,
    number: usize,
    layer: &TraceLayer,
    queries: Range<usize>,
    scale: f32,
    best: usize,
    means: &mut [HitMean],
) -> Result<()> {
    let shape = layer.shape();
    for kv_head in 0..shape.kv_heads {
        let site = Site { seed: 0, sequence: 0, layer: number, kv_head, shape };
        let keys = layer.keys.slice(s![kv_head, .., ..]).to_owned();
        let values = layer.values.slice(s![kv_head, .., ..]).to_owned();
        let (keys, values) = (tokens(&keys), tokens(&values));
        let mut worker = config.build(&site)?;
        worker.append(&NewTokens { first: 0, keys, values, classes: None });
        for query in queries.clone() {
            let heads = kv_head * shape.group()..(kv_head + 1) * shape.group();
            let group = layer.queries.slice(s![heads.clone(), query, ..]).mapv(|x| x * scale);
            let visible = layer.visible_to(query);
            let group: Vec<f32> = group.iter().copied().collect();
            let step = Step { site: &site, queries: &group, keys, values, visible, step: 0 };
            for (member, head) in heads.enumerate() {
                means[head].add(found(worker.as_ref(), &step, member, best));
            }
        }
    }
    Ok(())
}

/// The share of one query's best keys that are picked.
fn found(worker: &dyn Selector, step: &Step<'_>, member: usize, best: usize) -> f64 {
    let row = step.row(member);
    let looked_at = middle(step.visible);
    let mut picks = Picks::new(step.visible);
    picks.take_range(0..looked_at.start);
    picks.take_range(looked_at.end..step.visible);
    worker.select(&row, &mut picks);
    let mut logits = vec![0.0; step.visible];
    row.logits(&mut logits);
    let best = top(&logits[looked_at.clone()], best);
    let hits = best.iter().filter(|&&place| picks.contains(looked_at.start + place)).count();
    hits as f64 / best.len() as f64
}

fn tokens(rows: &ndarray::Array2<f32>) -> Tokens<'_> {
    let numbers = rows.as_slice().expect("an owned copy lies in order");
    Tokens::new(numbers, rows.nrows(), rows.ncols())
}
