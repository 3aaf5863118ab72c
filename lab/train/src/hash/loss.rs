//! Loss of the maps on a batch.

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, WithDType, bail};

use super::batch::{Batch, QueryLabels};
use super::model::Maps;

/// Returns the sum of the cross-entropy over the pairs that count, as a scalar tensor. The
/// cross-entropy of a pair with logit `s` is `softplus(s) − label · s`; positives have the weight
/// `positive_weight`.
///
/// # Errors
/// Errors of the tensor library.
pub(super) fn loss(maps: &Maps, batch: &Batch, positive_weight: f32) -> Result<Tensor> {
    let logits = maps.logits(&batch.queries, &batch.keys)?;
    logits.apply_op1(CrossEntropy { labels: batch.labels.clone(), positive_weight })
}

/// Cross-entropy of logits `[1, queries, keys]`, with one pass in each direction. As a composition
/// of tensor operations, it would take most of a step's time.
struct CrossEntropy {
    labels: Vec<QueryLabels>,
    positive_weight: f32,
}

impl CrossEntropy {
    /// Returns the loss of one query, from its logits.
    fn row_loss(&self, logits: &[f32], labels: &QueryLabels) -> f64 {
        let all = logits[labels.range.clone()].iter().map(|&x| f64::from(softplus(x)));
        let positive = labels.positives.iter().map(|&key| {
            let softplus = softplus(logits[key]);
            f64::from(self.positive_weight * (softplus - logits[key]) - softplus)
        });
        all.sum::<f64>() + positive.sum::<f64>()
    }

    /// Writes the derivative of one query's loss with respect to each logit into `out`, which must
    /// be zero.
    fn write_derivative(&self, logits: &[f32], labels: &QueryLabels, out: &mut [f32]) {
        for key in labels.range.clone() {
            out[key] = sigmoid(logits[key]);
        }
        for &key in &labels.positives {
            out[key] = self.positive_weight * (out[key] - 1.0);
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
        let rows = logits[first..end].chunks(layout.dims()[2]).zip(&self.labels);
        let sum: f64 = rows.map(|(logits, labels)| self.row_loss(logits, labels)).sum();
        Ok((f32::to_cpu_storage_owned(vec![sum as f32]), Shape::from(())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let numbers = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut derivative = vec![0.0; numbers.len()];
        let keys = logits.dim(2)?;
        for (i, out) in derivative.chunks_mut(keys).enumerate() {
            self.write_derivative(&numbers[i * keys..][..keys], &self.labels[i], out);
        }
        let derivative = Tensor::from_vec(derivative, logits.shape(), &Device::Cpu)?;
        Ok(Some(derivative.broadcast_mul(gradient)?))
    }
}

/// Returns `ln(1 + exp(x))`, without overflow.
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

    /// Ranges and positives of three queries.
    const LABELS: [(std::ops::Range<usize>, &[usize]); 3] =
        [(1..4, &[2]), (0..0, &[]), (0..4, &[0, 3])];

    fn entropy() -> CrossEntropy {
        let labels =
            LABELS.map(|(range, positives)| QueryLabels { range, positives: positives.to_vec() });
        CrossEntropy { labels: labels.to_vec(), positive_weight: 20.0 }
    }

    /// Computes the loss by its definition, with a label and a weight for each pair.
    fn by_tensors(logits: &Tensor) -> Tensor {
        let (mut labels, mut weights) = (vec![0_f32; 12], vec![0_f32; 12]);
        for (row, (range, positives)) in LABELS.into_iter().enumerate() {
            range.for_each(|key| weights[4 * row + key] = 1.0);
            for key in positives {
                (labels[4 * row + key], weights[4 * row + key]) = (1.0, 20.0);
            }
        }
        let tensor = |x: Vec<f32>| Tensor::from_vec(x, (1, 3, 4), &Device::Cpu).unwrap();
        let softplus = ((logits.exp().unwrap() + 1.0).unwrap()).log().unwrap();
        let entropy = (softplus - (tensor(labels) * logits).unwrap()).unwrap();
        (tensor(weights) * entropy).unwrap().sum_all().unwrap()
    }

    #[test]
    fn loss_and_gradient_follow_the_definition() {
        let numbers = (0..12).map(|i| 0.7 * (i as f32 - 5.0)).collect();
        let logits = Var::from_vec(numbers, (1, 3, 4), &Device::Cpu).unwrap();
        let found = logits.apply_op1(entropy()).unwrap();
        let expected = by_tensors(&logits);
        let scalar = |x: &Tensor| x.to_scalar::<f32>().unwrap();
        assert!((scalar(&found) - scalar(&expected)).abs() < 1e-4 * scalar(&expected));
        let gradient = |loss: Tensor| {
            let gradients = (loss * 0.5).unwrap().backward().unwrap();
            gradients.get(&logits).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for (found, expected) in gradient(found).iter().zip(gradient(expected)) {
            assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
        }
    }

    #[test]
    fn logits_may_be_large() {
        assert_eq!([softplus(500.0), softplus(-500.0)], [500.0, 0.0]);
        assert_eq!([sigmoid(500.0), sigmoid(-500.0)], [1.0, 0.0]);
    }
}
