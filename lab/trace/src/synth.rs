//! Synthetic heads of known difficulty.
//!
//! Each KV head is generated independently: segments of text, each with a topic; keys that follow
//! the topic, with short-range noise and rotary positions; and a base query at the last position.
//! Sinks, heavy hitters and needles are planted: their keys are moved along the base query until
//! their scores are those of the head's kind. Keys move only along the slower half of the rotary
//! pairs, which hardly turn from one position to the next, so that queries at other positions find
//! the planted tokens as well.
//!
//! A query head multiplies each element of the base query by `1 + 0.3 g`, and for each query once
//! more by `1 + 0.1 g`, with `g` standard normal. The length of every query is then set so that the
//! scores of the keys before planting have the kind's standard deviation. Finally, the slower half
//! of the query is corrected so that planting raises the scores of the keys by the same amounts as
//! for the base query, which changes the standard deviation by a few percent. The score of a
//! planted key before planting still differs from query to query. Shares of the attention weight
//! therefore hold on average at the last position, and only roughly for single queries or earlier
//! positions.

mod generator;
mod kind;
#[cfg(test)]
mod tests;

use ndarray::{Array3, Axis, s};
use vattention_core::Shape;

use crate::{Error, Result, TraceLayer};

use generator::{HeadGenerator, OSCILLATING};
pub use kind::HeadKind;

const FEWEST_TOKENS: usize = 512;
const MOST_TOKENS: usize = 1 << 24;
const MOST_DIM: usize = 4096;
/// Largest number of elements of the keys or the values of a layer.
const MOST_NUMBERS: usize = 1 << 31;

/// Settings of a synthetic layer.
#[derive(Clone, Debug)]
pub struct Synth {
    /// Kind of the heads.
    pub kind: HeadKind,
    /// Number of tokens in the cache.
    pub tokens: usize,
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Number of queries per query head, at the last positions; the tokens up to a query's own
    /// position are visible to it.
    pub queries: usize,
    /// Number of prompt queries per query head, at the last positions; may be 0.
    pub prompt: usize,
    /// Share of the attention that the learned sink of each query head holds at the last position,
    /// on average; 0 for heads without such sinks.
    pub sink_share: f64,
    /// Standard deviation of the elements of the mean value; 0.7 is usual.
    pub value_mean: f64,
    /// Seed: equal seeds give equal layers. Keys and values depend on neither `queries` nor
    /// `prompt`.
    pub seed: u64,
}

impl Synth {
    /// Generates the layer.
    ///
    /// # Errors
    /// [`Error::Setting`] names the field that is out of range.
    pub fn layer(&self) -> Result<TraceLayer> {
        self.check()?;
        let Shape { query_heads, kv_heads, head_dim, value_dim } = self.shape;
        let queries = |count| Array3::zeros((query_heads, count, head_dim));
        let first = self.tokens - self.queries + 1;
        let mut layer = TraceLayer {
            queries: queries(self.queries),
            keys: Array3::zeros((kv_heads, self.tokens, head_dim)),
            values: Array3::zeros((kv_heads, self.tokens, value_dim)),
            visible: Some((first..=self.tokens).collect()),
            prompt: (self.prompt > 0).then(|| queries(self.prompt)),
            prompt_tokens: None,
            classes: None,
            soft_cap: None,
            sink_logits: None,
        };
        for kv_head in 0..kv_heads {
            HeadGenerator::new(self, kv_head).fill(&mut layer, kv_head);
        }
        if self.sink_share > 0.0 {
            layer.sink_logits = Some(sink_logits(&layer, self.sink_share));
        }
        Ok(layer)
    }

    fn check(&self) -> Result<()> {
        self.check_shape()?;
        let within = |field, value: usize, least: usize, most: usize| {
            let reason = format!("{value}; expected {least} to {most}");
            if (least..=most).contains(&value) { Ok(()) } else { refuse(field, reason) }
        };
        within("tokens", self.tokens, FEWEST_TOKENS, MOST_TOKENS)?;
        within("queries", self.queries, 1, self.tokens)?;
        within("prompt_queries", self.prompt, 0, self.tokens)?;
        within("head_dim", self.shape.head_dim, 1, MOST_DIM)?;
        within("value_dim", self.shape.value_dim, 1, MOST_DIM)?;
        let numbers = self.shape.kv_heads * self.tokens;
        let numbers = numbers * self.shape.head_dim.max(self.shape.value_dim);
        if numbers > MOST_NUMBERS {
            let reason = format!("{numbers} numbers in a layer; expected at most {MOST_NUMBERS}");
            return refuse("tokens", reason);
        }
        if !(0.0..1.0).contains(&self.sink_share) {
            return refuse("sink_share", format!("{}; expected 0 to below 1", self.sink_share));
        }
        if !(0.0..=1000.0).contains(&self.value_mean) {
            return refuse("value_mean", format!("{}; expected 0 to 1000", self.value_mean));
        }
        Ok(())
    }

    fn check_shape(&self) -> Result<()> {
        if let Err(error) = self.shape.check() {
            let text = error.to_string();
            let fields = ["kv_heads", "head_dim", "value_dim"];
            let field = fields.into_iter().find(|name| text.starts_with(name));
            return refuse(field.unwrap_or("query_heads"), text);
        }
        let dim = self.shape.head_dim;
        if !dim.is_multiple_of(2) {
            let reason = format!("{dim}; expected an even number, for rotary pairs");
            return refuse("head_dim", reason);
        }
        let least = 2 * OSCILLATING.end;
        if self.kind == HeadKind::Osc && dim < least {
            let reason = format!("{dim}; expected at least {least} for kind `osc`");
            return refuse("head_dim", reason);
        }
        Ok(())
    }
}

/// Logits of attention sinks that hold a share of the attention of the last query of each head.
fn sink_logits(layer: &TraceLayer, share: f64) -> Vec<f32> {
    let shape = layer.shape();
    let scale = f64::from(shape.default_scale());
    let last = layer.queries.dim().1 - 1;
    let sink = |head: usize| {
        let keys = layer.keys.index_axis(Axis(0), head / shape.group()).mapv(f64::from);
        let query = layer.queries.slice(s![head, last, ..]).mapv(|q| scale * f64::from(q));
        let logits = keys.dot(&query);
        let most = logits.fold(f64::NEG_INFINITY, |most, &logit| most.max(logit));
        let log_sum = most + logits.mapv(|logit| (logit - most).exp()).sum().ln();
        (log_sum + (share / (1.0 - share)).ln()) as f32
    };
    (0..shape.query_heads).map(sink).collect()
}

fn refuse<T>(field: &'static str, reason: String) -> Result<T> {
    Err(Error::Setting { field, reason })
}
