//! Maps of a layer in training, with the state of their optimiser.

use candle_core::{Tensor, Var};
use rayon::prelude::*;

use super::adam::Adam;
use super::batch::Batch;
use super::loss::loss;
use super::model::Maps;
use super::settings::TrainingSettings;
use crate::Result;

/// The parameters of one layer, by their names in a file of weights.
pub(super) type Parameters = Vec<(String, Tensor)>;

/// One layer's maps on their way.
#[derive(Debug)]
pub(super) struct Learner {
    pub(super) maps: Maps,
    pub(super) adam: Adam,
    /// Steps done.
    pub(super) step: usize,
}

/// What one batch adds to the loss, and to the gradient of each parameter of its head.
struct Slope {
    loss: f32,
    gradients: Vec<Tensor>,
}

impl Learner {
    pub(super) fn parameters(&self) -> Parameters {
        let copy = |(name, var): (String, &Var)| (name, var.as_tensor().clone());
        self.maps.parameters().into_iter().map(copy).collect()
    }

    /// One step; the loss before it, averaged over what counts.
    pub(super) fn improve(
        &mut self,
        batches: &[Batch],
        settings: &TrainingSettings,
    ) -> Result<f32> {
        let counted: usize = batches.iter().map(Batch::counted).sum();
        let slope = |batch| self.slope(batch, settings.positive_weight, counted.max(1));
        let slopes = batches.par_iter().map(slope).collect::<Result<Vec<_>>>()?;
        let gradients = self.gradients(batches, &slopes)?;
        self.step += 1;
        self.adam.update(&self.maps.parameters(), &gradients, self.step, settings.learning_rate)?;
        Ok(slopes.iter().map(|slope| slope.loss).sum())
    }

    /// What one batch adds to the loss and to the gradients of its head.
    fn slope(&self, batch: &Batch, positive_weight: f64, counted: usize) -> Result<Slope> {
        let maps = self.maps.head(batch.head)?;
        let loss = (loss(&maps, batch, positive_weight as f32)? / counted as f64)?;
        let gradients = loss.backward()?;
        let of = |(_, var): (String, &Var)| match gradients.get(var) {
            Some(gradient) => Ok(gradient.clone()),
            None => var.zeros_like(),
        };
        let gradients = maps.parameters().into_iter().map(of).collect::<Result<_, _>>()?;
        Ok(Slope { loss: loss.to_scalar()?, gradients })
    }

    /// The gradients of all heads, in the parameters' order.
    fn gradients(&self, batches: &[Batch], slopes: &[Slope]) -> Result<Vec<Tensor>> {
        let of = |(i, (_, var)): (usize, (String, &Var))| {
            let mut heads = vec![var.as_tensor().narrow(0, 0, 1)?.zeros_like()?; var.dim(0)?];
            for (batch, slope) in batches.iter().zip(slopes) {
                heads[batch.head] = (&heads[batch.head] + &slope.gradients[i])?;
            }
            Ok(Tensor::cat(&heads, 0)?)
        };
        self.maps.parameters().into_iter().enumerate().map(of).collect()
    }
}
