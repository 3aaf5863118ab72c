//! Maps of a layer in training, with the state of their optimizer.

use candle_core::{Tensor, Var};
use rayon::prelude::*;

use super::adam::Adam;
use super::batch::Batch;
use super::loss::loss;
use super::model::Maps;
use super::settings::TrainingSettings;
use crate::Result;

/// Parameters of one layer, with their names in a file of weights.
pub(super) type Parameters = Vec<(String, Tensor)>;

/// Maps of one layer in training.
#[derive(Debug)]
pub(super) struct Learner {
    pub(super) maps: Maps,
    pub(super) adam: Adam,
    /// Completed steps.
    pub(super) step: usize,
}

/// Contributions of one batch to the loss, and to the gradient of each parameter of its head.
struct BatchGradient {
    loss: f32,
    gradients: Vec<Tensor>,
}

impl Learner {
    pub(super) fn parameters(&self) -> Parameters {
        let copy = |(name, var): (String, &Var)| (name, var.as_tensor().clone());
        self.maps.parameters().into_iter().map(copy).collect()
    }

    /// Takes one step, and returns the loss before it: the mean over pairs that count.
    pub(super) fn train_step(
        &mut self,
        batches: &[Batch],
        settings: &TrainingSettings,
    ) -> Result<f32> {
        let counted: usize = batches.iter().map(Batch::counted).sum();
        let differentiate =
            |batch| self.differentiate(batch, settings.positive_weight, counted.max(1));
        let parts = batches.par_iter().map(differentiate).collect::<Result<Vec<_>>>()?;
        let gradients = self.sum_gradients(batches, &parts)?;
        let rate = settings.learning_rate * (1.0 - self.step as f64 / settings.steps as f64);
        self.step += 1;
        self.adam.update(&self.maps.parameters(), &gradients, self.step, rate)?;
        Ok(parts.iter().map(|part| part.loss).sum())
    }

    /// Computes the contributions of one batch to the loss and to the gradients of its head.
    fn differentiate(
        &self,
        batch: &Batch,
        positive_weight: f64,
        counted: usize,
    ) -> Result<BatchGradient> {
        let maps = self.maps.head(batch.head)?;
        let loss = (loss(&maps, batch, positive_weight as f32)? / counted as f64)?;
        let gradients = loss.backward()?;
        let get = |(_, var): (String, &Var)| match gradients.get(var) {
            Some(gradient) => Ok(gradient.clone()),
            None => var.zeros_like(),
        };
        let gradients = maps.parameters().into_iter().map(get).collect::<Result<_, _>>()?;
        Ok(BatchGradient { loss: loss.to_scalar()?, gradients })
    }

    /// Sums the gradients of all batches, for all heads and in the parameters' order.
    fn sum_gradients(&self, batches: &[Batch], parts: &[BatchGradient]) -> Result<Vec<Tensor>> {
        let sum = |(i, (_, var)): (usize, (String, &Var))| {
            let mut heads = vec![var.as_tensor().narrow(0, 0, 1)?.zeros_like()?; var.dim(0)?];
            for (batch, part) in batches.iter().zip(parts) {
                heads[batch.head] = (&heads[batch.head] + &part.gradients[i])?;
            }
            Ok(Tensor::cat(&heads, 0)?)
        };
        self.maps.parameters().into_iter().enumerate().map(sum).collect()
    }
}
