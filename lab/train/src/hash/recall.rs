//! Recall of the best keys by the selector, with trained maps and with random hyperplanes.

use std::ops::Range;

use ndarray::s;
use vattention_core::{NewTokens, Picks, Selector, SelectorConfig, Shape, Site, Step, Tokens};
use vattention_selectors::HashAttention;
use vattention_trace::TraceLayer;

use super::HeldOut;
use super::labels::{middle, top};
use crate::{Corpus, Result};

/// Recall of one layer: the mean share of a query's best keys that are picked.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRecall {
    /// Number of the layer.
    pub layer: usize,
    /// Recall with the trained maps, for each query head.
    pub trained: Vec<f64>,
    /// Recall with random hyperplanes and the same number of bits, for each query head.
    pub hyperplanes: Vec<f64>,
}

/// Measures the recall of a selector with trained weights on held-out queries: the share of the
/// `best` keys with the largest `q·k`, without the ends of the context, that the selector picks.
/// The selector's `size` is the number of picks, usually a sixteenth of the tokens.
///
/// # Errors
/// Weights or traces that do not fit the selector, or that cannot be read.
pub fn recall(
    trained: &HashAttention,
    best: usize,
    corpus: &Corpus,
    held_out: HeldOut<'_>,
) -> Result<Vec<LayerRecall>> {
    let hyperplanes = HashAttention { weights: None, ..trained.clone() };
    let traces = if let HeldOut::Traces(other) = held_out { other } else { corpus };
    let measure = |(number, shape): (usize, Shape)| -> Result<LayerRecall> {
        let zero = vec![HitMean::default(); shape.query_heads];
        let mut means = [zero.clone(), zero];
        let scale = traces.scale().unwrap_or(shape.default_scale());
        for layer in traces.layer(number) {
            let layer = layer?;
            let queries = layer.queries.dim().1;
            let first = match held_out {
                HeldOut::Traces(_) => 0,
                HeldOut::LastQueries => held_out.training_queries(queries),
            };
            for (config, means) in [trained, &hyperplanes].into_iter().zip(&mut means) {
                add_recall(config, number, &layer, first..queries, scale, best, means)?;
            }
        }
        let [trained, hyperplanes] = means.map(|means| means.iter().map(HitMean::get).collect());
        Ok(LayerRecall { layer: number, trained, hyperplanes })
    };
    traces.layers().map(measure).collect()
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

/// Adds the recall of one selector for queries of one layer of one trace, for each query head.
fn add_recall(
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
        let mut selector = config.build(&site)?;
        selector.append(&NewTokens { first: 0, keys, values, classes: None });
        for query in queries.clone() {
            let heads = kv_head * shape.group()..(kv_head + 1) * shape.group();
            let group = layer.queries.slice(s![heads.clone(), query, ..]).mapv(|x| x * scale);
            let visible = layer.visible_to(query);
            let group: Vec<f32> = group.iter().copied().collect();
            let step = Step { visible, ..Step::new(&site, &group, keys, values) };
            for (member, head) in heads.enumerate() {
                means[head].add(row_recall(selector.as_ref(), &step, member, best));
            }
        }
    }
    Ok(())
}

/// Returns the share of one query's best keys that are picked.
fn row_recall(selector: &dyn Selector, step: &Step<'_>, member: usize, best: usize) -> f64 {
    let row = step.row(member);
    let range = middle(step.visible);
    let mut picks = Picks::new(step.visible);
    picks.take_range(0..range.start);
    picks.take_range(range.end..step.visible);
    selector.select(&row, &mut picks);
    let mut logits = vec![0.0; step.visible];
    row.logits(&mut logits);
    let best = top(&logits[range.clone()], best);
    let hits = best.iter().filter(|&&index| picks.contains(range.start + index)).count();
    hits as f64 / best.len() as f64
}

fn tokens(rows: &ndarray::Array2<f32>) -> Tokens<'_> {
    let numbers = rows.as_slice().expect("an owned copy is contiguous");
    Tokens::new(numbers, rows.nrows(), rows.ncols())
}
