//! Linear maps and norms, the parts of every layer.

use rayon::prelude::*;
use vattention_backends::process;

use crate::Result;
use crate::inputs::LinearInputs;
use crate::matrix::{Matrix, ProductPart};
use crate::product::WriteMode;
use crate::weights::CheckpointTensors;

/// Numbers per parallel job, for operations that do little with each number.
pub(crate) const PART: usize = 1 << 14;

/// Linear map `x Wᵀ + b`.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weight: Matrix,
    bias: Option<Vec<f32>>,
}

/// RMS norm `x / √(mean(x²) + epsilon) · w`, over the last dimension.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    weight: Vec<f32>,
    epsilon: f64,
}

/// Scratch memory for intermediate results, reused by all blocks of tokens and all layers.
#[derive(Debug, Default)]
pub(crate) struct LinearScratch {
    /// Matrix in f32.
    wide: Vec<f32>,
    /// Intermediate results of a feed-forward network.
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    /// Output of attention or of a feed-forward network, before its norm.
    pub(crate) branch: Vec<f32>,
}

impl Linear {
    /// Reads `{name}.weight` and, if `biased`, `{name}.bias`.
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        name: &str,
        [inputs, outputs]: [usize; 2],
        biased: bool,
    ) -> Result<Self> {
        let weight = weights.matrix(&format!("{name}.weight"), [outputs, inputs])?;
        let bias = biased.then(|| weights.vector(&format!("{name}.bias"), outputs));
        Ok(Self { weight, bias: bias.transpose()? })
    }

    /// Returns a linear map of weights `[out, in]`, without a bias.
    pub(crate) fn new(weight: Matrix) -> Self {
        Self::with_bias(weight, None)
    }

    /// Returns a linear map of weights `[out, in]` and a bias `[out]`.
    pub(crate) fn with_bias(weight: Matrix, bias: Option<Vec<f32>>) -> Self {
        Self { weight, bias }
    }

    /// Reads the parts of `{fused}.weight`, if the checkpoint has this tensor, otherwise
    /// `{part}.weight` for each part; and, if `biased`, their biases. A part is a name and a number
    /// of outputs.
    pub(crate) fn open_parts<const N: usize>(
        weights: &mut CheckpointTensors,
        fused: &str,
        inputs: usize,
        parts: [(&str, usize); N],
        biased: bool,
    ) -> Result<[Self; N]> {
        let fused_weight = format!("{fused}.weight");
        let mut linears = Vec::with_capacity(N);
        if !weights.has(&fused_weight) {
            for (name, outputs) in parts {
                linears.push(Self::open(weights, name, [inputs, outputs], biased)?);
            }
            return Ok(linears.try_into().expect("a map for each part"));
        }
        let rows = parts.map(|(_, outputs)| outputs);
        let all = weights.matrices(&fused_weight, &rows, inputs)?;
        let mut biases = Vec::new();
        if biased {
            biases = weights.vector(&format!("{fused}.bias"), rows.iter().sum())?;
        }
        for weight in all {
            let rest = biases.split_off(if biased { weight.outputs() } else { 0 });
            let bias = std::mem::replace(&mut biases, rest);
            linears.push(Self::with_bias(weight, biased.then_some(bias)));
        }
        Ok(linears.try_into().expect("a map for each part"))
    }

    /// Maps `[n, in]` to `[n, out]`, and overwrites `y`.
    pub(crate) fn apply(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        self.weight.apply(x, y, WriteMode::Overwrite, &mut scratch.wide);
        self.add_bias(y);
    }

    /// Maps `[n, in]` to `[n, out]`, and adds the result to `y`.
    pub(crate) fn add(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        self.weight.apply(x, y, WriteMode::Add, &mut scratch.wide);
        self.add_bias(y);
    }

    /// Applies maps to the same rows, each with its `y`. For one row the maps are computed in
    /// parallel. For more rows they are computed one after the other, each on all threads.
    pub(crate) fn apply_all<const N: usize>(
        x: &LinearInputs<'_>,
        mut maps: [(&Self, &mut [f32]); N],
        scratch: &mut LinearScratch,
    ) {
        if x.rows() > 1 {
            for (map, y) in maps {
                map.apply(x, y, scratch);
            }
            return;
        }
        let mut parts = Vec::new();
        for (map, y) in &mut maps {
            map.weight.add_parts(x, y, &mut parts);
        }
        process(parts, ProductPart::multiply);
        for (map, y) in maps {
            map.add_bias(y);
        }
    }

    /// Number of elements of an output row.
    pub(crate) fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    fn add_bias(&self, y: &mut [f32]) {
        let Some(bias) = &self.bias else { return };
        for row in y.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }
}

impl Norm {
    /// Reads `{name}.weight`.
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        name: &str,
        size: usize,
        epsilon: f64,
    ) -> Result<Self> {
        Ok(Self { weight: weights.norm(&format!("{name}.weight"), size)?, epsilon })
    }

    /// Returns a norm over `size` elements whose weights are 1.
    pub(crate) fn unweighted(size: usize, epsilon: f64) -> Self {
        Self { weight: vec![1.0; size], epsilon }
    }

    /// Normalises each row of `x`, `[n, size]`, into `y`.
    pub(crate) fn apply(&self, x: &[f32], y: &mut [f32]) {
        y.copy_from_slice(x);
        self.apply_in_place(y);
    }

    /// Normalises each row in place, `[n, size]`.
    pub(crate) fn apply_in_place(&self, rows: &mut [f32]) {
        let size = self.weight.len();
        rows.par_chunks_mut(size * (PART / size).max(1)).for_each(|rows| {
            rows.chunks_exact_mut(size).for_each(|row| self.apply_to(row));
        });
    }

    fn apply_to(&self, row: &mut [f32]) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let root = (squares / row.len() as f64 + self.epsilon).sqrt() as f32;
        row.iter_mut().zip(&self.weight).for_each(|(x, weight)| *x = *x / root * weight);
    }
}
