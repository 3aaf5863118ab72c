//! One token, whose attention is the pipeline's.

use std::time::Instant;

use ndarray::Array3;

use super::Session;
use crate::linear::Scratch;
use crate::{Error, LayerReport, Result};

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
        // A step has hundreds of small products. Begun on one of rayon's threads, they share work out
        // without waking a thread and waiting for it each time.
        rayon::scope(|_| self.grow(1, |session| session.decode(token)))
    }

    fn decode(&mut self, token: u32) -> Result<Vec<f32>> {
        let shape = self.model.config().shape;
        let mut x = self.model.embed(&[token])?;
        let table = self.model.rope.table(self.len, 1);
        let (angles, scratch) = (table.all(), &mut Scratch::default());
        let mut normed = vec![0.0; x.len()];
        let rows = |heads, dim| Array3::zeros((heads, 1, dim));
        let mut queries = rows(shape.query_heads, shape.head_dim);
        let mut keys = rows(shape.kv_heads, shape.head_dim);
        let mut values = rows(shape.kv_heads, shape.value_dim);
        self.reports.clear();
        let layers = self.model.layers.iter().zip(&mut self.layers).enumerate();
        for (number, (layer, attention)) in layers {
            let failed = |source| Error::Attention { layer: number, source };
            layer.normed(&x, &mut normed);
            // Heads of one token lie in order both as [1, heads, dim] and as [heads, 1, dim].
            layer.keys(&normed, angles, numbers(&mut keys), scratch)?;
            layer.values(&normed, numbers(&mut values), scratch)?;
            layer.queries(&normed, angles, numbers(&mut queries), scratch)?;
            let begin = Instant::now();
            attention.append(keys.view(), values.view()).map_err(failed)?;
            let output = attention.attend(queries.view(), None).map_err(failed)?;
            let time = begin.elapsed();
            let attended: Vec<f32> = output.out.iter().copied().collect();
            layer.finish(&mut x, &attended, &mut normed, scratch)?;
            self.reports.push(LayerReport::new(output, time));
        }
        Ok(self.model.logits(&x)?)
    }
}

fn numbers(rows: &mut Array3<f32>) -> &mut [f32] {
    rows.as_slice_mut().expect("arrays in standard order")
}
