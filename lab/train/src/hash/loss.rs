//! How wrong the maps are.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, WithDType, bail};

use super::batch::{Batch, Wanted};
use super::model::Maps;

/// The sum over what counts of the cross-entropy of `σ(s)`, `softplus(s) − label · s`, where positives
/// count `positive_weight` times. A scalar.
///
/// # Errors
/// What the tensor library refuses.
pub(super) fn loss(maps: &Maps, batch: &Batch, positive_weight: f32) -> Result<Tensor> {
    let logits = maps.logits(&batch.queries, &batch.keys)?;
    logits.apply_op1(CrossEntropy { wanted: batch.wanted.clone(), positive_weight })
}

/// Of logits `[1, queries, keys]`, in one pass each way: written as tensors' operations it takes most of
/// a step's time.
struct CrossEntropy {
    wanted: Vec<Wanted>,
    positive_weight: f32,
}

impl CrossEntropy {
    /// The loss of each query with its own logits.
    fn of(&self, logits: &[f32], wanted: &Wanted) -> f64 {
        let all = logits[wanted.looked_at.clone()].iter().map(|&x| f64::from(softplus(x)));
        let positive = wanted.best.iter().map(|&key| {
            let softplus = softplus(logits[key]);
            f64::from(self.positive_weight * (softplus - logits[key]) - softplus)
        });
        all.sum::<f64>() + positive.sum::<f64>()
    }

    /// Its derivative by each logit, into zeros.
    fn derivative(&self, logits: &[f32], wanted: &Wanted, to: &mut [f32]) {
        for key in wanted.looked_at.clone() {
            to[key] = sigmoid(logits[key]);
        }
        for &key in &wanted.best {
            to[key] = self.positive_weight * (to[key] - 1.0);
        }
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let logits = f32::cpu_storage_as_slice(storage)?;
        let Some((first, end)) = layout.contiguous_offsets() else { bail!("logits with gaps") };
        let rows = logits[first..end].chunks(layout.dims()[2]).zip(&self.wanted);
        let sum: f64 = rows.map(|(logits, wanted)| self.of(logits, wanted)).sum();
        Ok((f32::to_cpu_storage_owned(vec![sum as f32]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let numbers = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut derivative = vec![0.0; numbers.len()];
        let keys = logits.dim(2)?;
        let rows = derivative.chunks_mut(keys).zip(numbers.chunks(keys));
        for ((to, logits), wanted) in rows.zip(&self.wanted) {
            self.derivative(logits, wanted, to);
        }
        let derivative = Tensor::from_vec(derivative, logits.shape(), &Device::Cpu)?;
        Ok(Some(derivative.broadcast_mul(gradient)?))
    }
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;

    const WANTED: [(std::ops::Range<usize>, &[usize]); 3] =
        [(1..4, &[2]), (0..0, &[]), (0..4, &[0, 3])];

    fn entropy() -> CrossEntropy {
        let wanted = WANTED.map(|(looked_at, best)| Wanted { looked_at, best: best.to_vec() });
        CrossEntropy { wanted: wanted.to_vec(), positive_weight: 20.0 }
    }

    /// The definition, with a label and a weight for each pair.
    fn by_tensors(logits: &Tensor) -> Tensor {
        let (mut labels, mut weights) = (vec![0_f32; 12], vec![0_f32; 12]);
        for (row, (looked_at, best)) in WANTED.into_iter().enumerate() {
            looked_at.for_each(|key| weights[4 * row + key] = 1.0);
            for key in best {
                (labels[4 * row + key], weights[4 * row + key]) = (1.0, 20.0);
            }
        }
        let tensor = |x: Vec<f32>| Tensor::from_vec(x, (1, 3, 4), &Device::Cpu).unwrap();
        let softplus = ((logits.exp().unwrap() + 1.0).unwrap()).log().unwrap();
        let entropy = (softplus - (tensor(labels) * logits).unwrap()).unwrap();
        (tensor(weights) * entropy).unwrap().sum_all().unwrap()
    }

    #[test]
    fn loss_and_gradient_are_those_of_the_definition() {
        let numbers = (0..12).map(|i| 0.7 * (i as f32 - 5.0)).collect();
        let logits = Var::from_vec(numbers, (1, 3, 4), &Device::Cpu).unwrap();
        let found = logits.apply_op1(entropy()).unwrap();
        let want = by_tensors(&logits);
        let scalar = |x: &Tensor| x.to_scalar::<f32>().unwrap();
        assert!((scalar(&found) - scalar(&want)).abs() < 1e-4 * scalar(&want));
        let gradient = |loss: Tensor| {
            let gradients = (loss * 0.5).unwrap().backward().unwrap();
            gradients.get(&logits).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for (found, want) in gradient(found).iter().zip(gradient(want)) {
            assert!((found - want).abs() < 1e-5, "{found} for {want}");
        }
    }

    #[test]
    fn logits_may_be_large() {
        assert_eq!([softplus(500.0), softplus(-500.0)], [500.0, 0.0]);
        assert_eq!([sigmoid(500.0), sigmoid(-500.0)], [1.0, 0.0]);
    }
}
