//! How wrong the maps are.

use candle_core::{Result, Tensor};

use super::batch::Batch;
use super::model::Maps;

/// Binary cross-entropy of `σ(s)`, as `softplus(s) − label · s`, weighted, and averaged over what
/// counts.
pub(super) fn loss(maps: &Maps, batch: &Batch) -> Result<Tensor> {
    let logits = maps.logits(&batch.queries, &batch.keys)?;
    let entropy = (softplus(&logits)? - (&batch.labels * &logits)?)?;
    (&batch.weights * entropy)?.sum_all()? / batch.counted.max(1) as f64
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?
}
