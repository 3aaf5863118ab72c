//! Adam (Kingma and Ba 2015, <https://arxiv.org/abs/1412.6980>), with moments that can be stored.

use candle_core::{Result, Tensor, Var};

/// Decay rate of the first moment.
const FIRST: f64 = 0.9;
/// Decay rate of the second moment.
const SECOND: f64 = 0.999;
/// Term that prevents a division by zero.
const TINY: f64 = 1e-8;

/// Moments of all parameters, in the parameters' order.
#[derive(Debug)]
pub(super) struct Adam {
    pub(super) moments: Vec<AdamMoments>,
}

/// Running means of a parameter's gradient and of its square.
#[derive(Debug)]
pub(super) struct AdamMoments {
    pub(super) first: Tensor,
    pub(super) second: Tensor,
}

impl Adam {
    pub(super) fn new(parameters: &[(String, &Var)]) -> Result<Self> {
        let zero = |(_, var): &(String, &Var)| {
            Ok(AdamMoments { first: var.zeros_like()?, second: var.zeros_like()? })
        };
        Ok(Self { moments: parameters.iter().map(zero).collect::<Result<_>>()? })
    }

    /// Updates the parameters by their gradients; `step` counts from 1.
    pub(super) fn update(
        &mut self,
        parameters: &[(String, &Var)],
        gradients: &[Tensor],
        step: usize,
        learning_rate: f64,
    ) -> Result<()> {
        let bias = |rate: f64| 1.0 - rate.powi(step as i32);
        for (i, (_, var)) in parameters.iter().enumerate() {
            let (moments, gradient) = (&mut self.moments[i], &gradients[i]);
            moments.first = mix(&moments.first, gradient, FIRST)?;
            moments.second = mix(&moments.second, &gradient.sqr()?, SECOND)?;
            let deviation = ((&moments.second / bias(SECOND))?.sqrt()? + TINY)?;
            let change = (&moments.first / bias(FIRST))?.div(&deviation)?;
            var.set(&(var.as_tensor() - (change * learning_rate)?)?)?;
        }
        Ok(())
    }
}

/// Returns `rate · old + (1 − rate) · new`.
fn mix(old: &Tensor, new: &Tensor, rate: f64) -> Result<Tensor> {
    Ok(((old * rate)? + (new * (1.0 - rate))?)?.detach())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// With a constant gradient, both corrected moments are constant, and every step is as long as
    /// the learning rate.
    #[test]
    fn steps_with_a_constant_gradient_are_as_long_as_the_learning_rate() {
        let var = Var::new(&[2.0_f32, -1.0], &Device::Cpu).unwrap();
        let slope = Tensor::new(&[3.0_f32, -0.5], &Device::Cpu).unwrap();
        let parameters = [("x".to_owned(), &var)];
        let mut adam = Adam::new(&parameters).unwrap();
        for step in 1..=5 {
            adam.update(&parameters, std::slice::from_ref(&slope), step, 0.01).unwrap();
            let distance = 0.01 * step as f32;
            let expected = [2.0 - distance, distance - 1.0];
            for (found, expected) in var.to_vec1::<f32>().unwrap().iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "step {step}: {found} for {expected}");
            }
        }
    }
}
