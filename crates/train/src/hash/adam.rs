//! Adam (Kingma and Ba 2015, <https://arxiv.org/abs/1412.6980>), with moments that can be stored.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

const FIRST: f64 = 0.9;
const SECOND: f64 = 0.999;
const TINY: f64 = 1e-8;

/// The moments of each parameter, in the parameters' order.
#[derive(Debug)]
pub(super) struct Adam {
    pub(super) moments: Vec<Moments>,
}

/// Running means of a parameter's gradient and of its square.
#[derive(Debug)]
pub(super) struct Moments {
    pub(super) first: Tensor,
    pub(super) second: Tensor,
}

impl Adam {
    pub(super) fn new(parameters: &[(String, &Var)]) -> Result<Self> {
        let zero = |(_, var): &(String, &Var)| {
            Ok(Moments { first: var.zeros_like()?, second: var.zeros_like()? })
        };
        Ok(Self { moments: parameters.iter().map(zero).collect::<Result<_>>()? })
    }

    /// Moves the parameters; `step` counts from 1.
    pub(super) fn update(
        &mut self,
        parameters: &[(String, &Var)],
        gradients: &GradStore,
        step: usize,
        learning_rate: f64,
    ) -> Result<()> {
        let started = |rate: f64| 1.0 - rate.powi(step as i32);
        for ((_, var), moments) in parameters.iter().zip(&mut self.moments) {
            let Some(gradient) = gradients.get(var) else { continue };
            moments.first = mix(&moments.first, gradient, FIRST)?;
            moments.second = mix(&moments.second, &gradient.sqr()?, SECOND)?;
            let deviation = ((&moments.second / started(SECOND))?.sqrt()? + TINY)?;
            let change = (&moments.first / started(FIRST))?.div(&deviation)?;
            var.set(&(var.as_tensor() - (change * learning_rate)?)?)?;
        }
        Ok(())
    }
}

/// `rate · old + (1 − rate) · new`.
fn mix(old: &Tensor, new: &Tensor, rate: f64) -> Result<Tensor> {
    Ok(((old * rate)? + (new * (1.0 - rate))?)?.detach())
}
