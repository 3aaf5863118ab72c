//! Decode steps: tokens whose attention follows the pipeline.

use std::time::Instant;

use ndarray::{Array3, ArrayView3, Axis};
use vattention_core::{Attention, Output, TokenClass};

use super::Session;
use crate::awake::keep_awake;
use crate::inputs::LinearInputs;
use crate::linear::LinearScratch;
use crate::{Error, LayerReport, Result};

/// Least number of tokens for which linear maps are batched. Batching widens weights in bf16 to
/// f32, which does not pay for fewer tokens.
const LEAST_BATCH: usize = 8;

/// Largest number of tokens whose linear maps are batched, which bounds memory.
const MAX_BATCH: usize = 256;

impl Session<'_> {
    /// Adds one token, which attends by the pipeline in every layer, and returns the logits after
    /// it, `[vocab_size]`. Afterwards [`reports`](Self::reports) describes this step.
    ///
    /// # Errors
    /// [`Error::Input`] if the vocabulary lacks the token or the context is full; the sequence is
    /// then unchanged. If a layer fails, the sequence is lost.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        self.model.check(&[token], self.len)?;
        self.decode(&[token])
    }

    /// Adds several tokens whose values are known in advance, such as a question about a context.
    /// In each layer they attend one after the other, as by [`step`](Self::step); the linear maps
    /// are computed for up to 256 tokens together, so results differ by rounding. Returns the
    /// logits after the last token, `[vocab_size]`, or `logits` if `tokens` is empty.
    ///
    /// Cost: each weight is read once per 256 tokens.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn steps(&mut self, mut logits: Vec<f32>, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        self.model.check(tokens, self.len)?;
        let block = if tokens.len() < LEAST_BATCH { 1 } else { MAX_BATCH };
        for tokens in tokens.chunks(block) {
            logits = self.decode(tokens)?;
        }
        Ok(logits)
    }

    /// Adds tokens, and returns the logits after the last one.
    fn decode(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        keep_awake(|| self.grow(tokens.len(), |session| session.run_layers(tokens)))
    }

    fn run_layers(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let shape = self.model.config().shape;
        let classes = self.classify(tokens);
        let mut x = self.model.embed(tokens);
        let table = self.model.rope.table(self.len, tokens.len());
        let (angles, scratch) = (table.all(), &mut LinearScratch::default());
        let mut normed = vec![0.0; x.len()];
        let rows = |heads, dim| Array3::zeros((tokens.len(), heads, dim));
        let mut queries = rows(shape.query_heads, shape.head_dim);
        let mut keys = rows(shape.kv_heads, shape.head_dim);
        let mut values = rows(shape.kv_heads, shape.value_dim);
        let mut attended = Vec::with_capacity(tokens.len() * shape.query_heads * shape.value_dim);
        self.reports.clear();
        let layers = self.model.layers.iter().zip(&mut self.layers).enumerate();
        for (number, (layer, attention)) in layers {
            let failed = |source| Error::Attention { layer: number, source };
            layer.normalise_input(&x, &mut normed);
            let inputs = LinearInputs::new(&normed, tokens.len());
            let projected = [&mut queries, &mut keys, &mut values].map(numbers);
            layer.project(&inputs, angles, projected, scratch);
            attended.clear();
            let mut report = None;
            for token in 0..tokens.len() {
                let begin = Instant::now();
                let class = classes.as_ref().map(|classes| &classes[token..=token]);
                let [queries, keys, values] =
                    [&queries, &keys, &values].map(|rows| token_rows(rows, token));
                let output =
                    attend(attention.as_mut(), queries, [keys, values], class).map_err(failed)?;
                let time = begin.elapsed();
                attended.extend(&output.out);
                report = Some(LayerReport::new(output, time));
            }
            layer.finish(&mut x, &attended, &mut normed, scratch);
            self.reports.extend(report);
        }
        Ok(self.model.logits(&x))
    }
}

/// Appends one token's key and value to a layer's attention, and attends.
fn attend(
    attention: &mut dyn Attention,
    queries: ArrayView3<'_, f32>,
    [keys, values]: [ArrayView3<'_, f32>; 2],
    class: Option<&[TokenClass]>,
) -> vattention_core::Result<Output> {
    attention.append_rows(keys.into(), values.into(), class)?;
    attention.attend(queries, None)
}

/// Rows of one token, `[heads, 1, dim]`, from `[tokens, heads, dim]`.
fn token_rows(rows: &Array3<f32>, token: usize) -> ArrayView3<'_, f32> {
    rows.index_axis(Axis(0), token).insert_axis(Axis(1))
}

fn numbers(rows: &mut Array3<f32>) -> &mut [f32] {
    rows.as_slice_mut().expect("arrays in standard order")
}
