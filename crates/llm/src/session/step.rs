//! One token, whose attention is the pipeline's.

use std::time::Instant;

use candle_core::{Device, Tensor};

use super::Session;
use crate::prefill::to_array;
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
        self.grow(1, |session| session.decode(token))
    }

    fn decode(&mut self, token: u32) -> Result<Vec<f32>> {
        let mut x = self.model.embed(&[token])?;
        let angles = self.model.rope.angles(self.len, 1)?;
        self.reports.clear();
        let layers = self.model.layers.iter().zip(&mut self.layers).enumerate();
        for (number, (layer, attention)) in layers {
            let failed = |source| Error::Attention { layer: number, source };
            let normed = layer.normed(&x)?;
            let (keys, values) = layer.keys_values(&normed, &angles)?;
            let queries = to_array(&layer.queries(&normed, &angles)?)?;
            let (keys, values) = (to_array(&keys)?, to_array(&values)?);
            let begin = Instant::now();
            attention.append(keys.view(), values.view()).map_err(failed)?;
            let output = attention.attend(queries.view(), None).map_err(failed)?;
            let time = begin.elapsed();
            let numbers = output.out.iter().copied().collect();
            let attended = Tensor::from_vec(numbers, output.out.dim(), &Device::Cpu)?;
            x = layer.finish(&x, &attended)?;
            self.reports.push(LayerReport::new(output, time));
        }
        Ok(self.model.logits(&x)?)
    }
}
