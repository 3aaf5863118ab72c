//! For use: f32 matrix products over blocks of the list, KV heads in parallel.
//!
//! Each row of K and V is read once for all query heads that read the list. Blocks are summed in
//! f32 and merged in f64, in list order, so results do not depend on the number of threads.

#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod kernel;
#[allow(unsafe_code, unsafe_op_in_unsafe_fn)]
mod simd;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ndarray::{Array2, ArrayView2, Axis};
use rayon::{ThreadPool, ThreadPoolBuilder};
use vattention_core::{
    Attention, Backend, Error, Options, PipelineConfig, Result, Shape, Softmax, Step,
};

use crate::layer::{Layer, ListView, RowSums, Workers};

/// Tokens whose rows are gathered and multiplied at a time: 256 rows of keys and values of 128
/// numbers are 256 KiB, which stay in the second-level cache.
const BLOCK: usize = 256;

/// KV heads in parallel on `options.threads` threads; by default, on rayon's global pool. All
/// sequences that ask one `Cpu` for the same number of threads share them.
#[derive(Debug, Default)]
pub struct Cpu {
    pools: Mutex<BTreeMap<usize, Arc<ThreadPool>>>,
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn summary(&self) -> &'static str {
        "f32 matrix products, KV heads in parallel"
    }

    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>> {
        let workers = options.threads.map_or(Ok(Workers::Global), |threads| self.pool(threads))?;
        Ok(Box::new(Layer::new(pipeline, layer, shape, options, workers, attend)?))
    }
}

impl Cpu {
    fn pool(&self, threads: usize) -> Result<Workers> {
        let refuse = |reason: String| Error::Backend { backend: "cpu".into(), reason };
        if threads == 0 {
            return Err(refuse("threads: expected at least 1, got 0".into()));
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&threads) {
            return Ok(Workers::Own(pool.clone()));
        }
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = Arc::new(pool.map_err(|error| refuse(error.to_string()))?);
        pools.insert(threads, pool.clone());
        Ok(Workers::Own(pool))
    }
}

fn attend(step: &Step<'_>, members: Range<usize>, list: &ListView<'_>) -> Vec<RowSums> {
    let dim = step.site.shape.head_dim;
    let queries = &step.queries[members.start * dim..members.end * dim];
    let queries = ArrayView2::from_shape((members.len(), dim), queries)
        .expect("members · head_dim numbers were sliced");
    let empty = RowSums {
        sums: Softmax::new(step.site.shape.value_dim),
        logits: Vec::with_capacity(list.indices.len()),
    };
    let mut rows = vec![empty; members.len()];
    for (indices, probabilities) in list.indices.chunks(BLOCK).zip(list.probabilities.chunks(BLOCK))
    {
        let tokens = || indices.iter().map(|&token| token as usize);
        let logits = queries.dot(&step.keys.gather(tokens()).t());
        let (weights, shifts) = weigh(&logits, probabilities);
        let numerators = weights.dot(&step.values.gather(tokens()));
        for (i, row) in rows.iter_mut().enumerate() {
            let denominator = weights.row(i).iter().map(|&w| f64::from(w)).sum();
            let numerator = numerators.row(i).iter().map(|&n| f64::from(n)).collect();
            row.sums.merge(&Softmax::from_sums(f64::from(shifts[i]), denominator, numerator));
            row.logits.extend(logits.row(i));
        }
    }
    rows
}

/// `e^(logit − shift) / p` `[members, block]`, and each member's shift, the largest logit.
fn weigh(logits: &Array2<f32>, probabilities: &[f32]) -> (Array2<f32>, Vec<f32>) {
    let shifts: Vec<f32> = logits
        .axis_iter(Axis(0))
        .map(|row| row.fold(f32::NEG_INFINITY, |a, &b| a.max(b)))
        .collect();
    let mut weights = logits.clone();
    for (mut row, shift) in weights.axis_iter_mut(Axis(0)).zip(&shifts) {
        row.iter_mut().zip(probabilities).for_each(|(w, p)| *w = (*w - shift).exp() / p);
    }
    (weights, shifts)
}
