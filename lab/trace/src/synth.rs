//! Synthetic heads of known difficulty.
//!
//! Each KV head is made on its own: segments of text, each with a topic; keys that follow the
//! topic, with short-range noise and rotary positions; and a base query at the last position.
//! Sinks, heavy hitters and needles are planted by moving their keys along the base query until its
//! scores are those that the kind asks for. Keys move only along the slower half of the rotary
//! pairs, which hardly turn from one position to the next, so that queries at other positions find
//! what was planted too.
//!
//! A query head scales each number of the base query by `1 + 0.3 g` and each of its queries once
//! more by `1 + 0.1 g`, `g` standard normal. Every query is then given the length at which its
//! scores on the keys as they were before planting have the kind's standard deviation; last, its
//! slower half is corrected until planted keys gain as much as they do for the base query, which
//! changes the standard deviation by a few percent. What a planted key scored before still differs
//! from query to query, so shares of the mass hold on average at the last position, and only
//! roughly for one query or further back.

mod kind;
mod maker;
#[cfg(test)]
mod tests;

use ndarray::Array3;
use vattention_core::Shape;

use crate::{Error, Result, TraceLayer};

pub use kind::HeadKind;
use maker::{Maker, OSCILLATING};

const FEWEST_TOKENS: usize = 512;
const MOST_TOKENS: usize = 1 << 24;
const MOST_DIM: usize = 4096;
/// Elements of the keys or the values of a layer.
const MOST_NUMBERS: usize = 1 << 31;

/// What to make.
#[derive(Clone, Debug)]
pub struct Synth {
    /// What the heads attend to.
    pub kind: HeadKind,
    /// Tokens in the cache.
    pub tokens: usize,
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Queries per query head, at the last positions; each sees the tokens up to its own.
    pub queries: usize,
    /// Prompt queries per query head, at the last positions; may be 0.
    pub prompt: usize,
    /// The standard deviation of the mean value's numbers; 0.7 is usual.
    pub value_mean: f64,
    /// Equal seeds make equal layers; the cache depends on neither `queries` nor `prompt`.
    pub seed: u64,
}

impl Synth {
    /// Makes the layer.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the field that is out of range.
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
        };
        for kv_head in 0..kv_heads {
            Maker::new(self, kv_head).fill(&mut layer, kv_head);
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

fn refuse<T>(field: &'static str, reason: String) -> Result<T> {
    Err(Error::Setting { field, reason })
}
