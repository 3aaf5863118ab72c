//! Tokens whose attention is the pipeline's.

use std::time::Instant;

use ndarray::{Array3, ArrayView3, Axis};
use vattention_core::{Attention, Output, TokenClass};

use super::Session;
use crate::awake::keep_awake;
use crate::inputs::LinearInputs;
use crate::linear::LinearScratch;
use crate::{Error, LayerReport, Result};

/// Known tokens from which on their linear maps are made together: weights are widened for that, which
/// a few tokens are not worth.
const TOGETHER: usize = 8;

/// Known tokens whose linear maps are made together at most, which bounds memory.
const BLOCK: usize = 256;

impl Session<'_> {
    /// Adds one token, which attends by the pipeline in every layer, and returns the logits after
    /// it, `[vocab_size]`. [`reports`](Self::reports) then tells what was read.
    ///
    /// # Errors
    /// [`Error::Input`] if the model does not have the token, or no place for it: then nothing has
    /// changed. If a layer fails, the sequence is lost.
    pub fn step(&mut self, token: u32) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        self.model.check(&[token], self.len)?;
        self.decode(&[token])
    }

    /// Adds tokens that are known already, such as a question about a context. They attend as by
    /// [`step`](Self::step), one after the other in each layer; all else of a layer is done for many of
    /// them at once, which differs by rounding. Returns the logits after the last, `[vocab_size]`;
    /// `logits`, if there are none.
    ///
    /// Cost: of a weight, a reading for 256 tokens, not for each.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn steps(&mut self, mut logits: Vec<f32>, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check_not_lost()?;
        self.model.check(tokens, self.len)?;
        let block = if tokens.len() < TOGETHER { 1 } else { BLOCK };
        for tokens in tokens.chunks(block) {
            logits = self.decode(tokens)?;
        }
        Ok(logits)
    }

    /// Adds tokens, and returns the logits after the last.
    fn decode(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        keep_awake(|| self.grow(tokens.len(), |session| session.through_layers(tokens)))
    }

    fn through_layers(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let shape = self.model.config().shape;
        let classes = self.classes_of(tokens);
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
            layer.normed(&x, &mut normed);
            let inputs = LinearInputs::new(&normed, tokens.len());
            let projected = [&mut queries, &mut keys, &mut values].map(numbers);
            layer.project(&inputs, angles, projected, scratch);
            attended.clear();
            let mut report = None;
            for token in 0..tokens.len() {
                let begin = Instant::now();
                let class = classes.as_ref().map(|classes| &classes[token..=token]);
                let [queries, keys, values] =
                    [&queries, &keys, &values].map(|rows| of_token(rows, token));
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

/// One token's step in a layer.
fn attend(
    attention: &mut dyn Attention,
    queries: ArrayView3<'_, f32>,
    [keys, values]: [ArrayView3<'_, f32>; 2],
    class: Option<&[TokenClass]>,
) -> vattention_core::Result<Output> {
    attention.append_rows(keys.into(), values.into(), class)?;
    attention.attend(queries, None)
}

/// `[heads, 1, dim]` of `[tokens, heads, dim]`.
fn of_token(rows: &Array3<f32>, token: usize) -> ArrayView3<'_, f32> {
    rows.index_axis(Axis(0), token).insert_axis(Axis(1))
}

fn numbers(rows: &mut Array3<f32>) -> &mut [f32] {
    rows.as_slice_mut().expect("arrays in standard order")
}
