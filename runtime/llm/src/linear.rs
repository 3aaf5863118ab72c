//! The parts that every layer is made of: linear maps and norms.

use rayon::prelude::*;

use crate::Result;
use crate::inputs::LinearInputs;
use crate::matrix::Matrix;
use crate::product::Into;
use crate::weights::Weights;

/// Numbers that a thread takes at once where little is done with each.
pub(crate) const PART: usize = 1 << 14;

/// `x Wᵀ + b`
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weight: Matrix,
    bias: Option<Vec<f32>>,
}

/// `x / √(mean(x²) + epsilon) · w`, over the last dimension.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    weight: Vec<f32>,
    epsilon: f64,
}

/// Memory for what is between two products, used again for each block of tokens and each layer.
#[derive(Debug, Default)]
pub(crate) struct LinearScratch {
    /// A matrix in f32.
    wide: Vec<f32>,
    /// Between the products of a feed-forward network.
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
}

impl Linear {
    /// From `{name}.weight` and, where there should be one, `{name}.bias`.
    pub(crate) fn open(
        weights: &mut Weights,
        name: &str,
        [inputs, outputs]: [usize; 2],
        biased: bool,
    ) -> Result<Self> {
        let weight = weights.matrix(&format!("{name}.weight"), [outputs, inputs])?;
        let bias = biased.then(|| weights.vector(&format!("{name}.bias"), outputs));
        Ok(Self { weight, bias: bias.transpose()? })
    }

    /// Makes a layer of weights `[out, in]` that were read before, without a bias.
    pub(crate) fn new(weight: Matrix) -> Self {
        Self { weight, bias: None }
    }

    /// `[n, in]` to `[n, out]`, in the place of what `y` holds.
    pub(crate) fn apply(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        self.weight.apply(x, y, Into::Fresh, &mut scratch.wide);
        self.add_bias(y);
    }

    /// `[n, in]` to `[n, out]`, added to what `y` holds.
    pub(crate) fn add(&self, x: &LinearInputs<'_>, y: &mut [f32], scratch: &mut LinearScratch) {
        self.weight.apply(x, y, Into::Added, &mut scratch.wide);
        self.add_bias(y);
    }

    /// Applies maps to the same rows, each into its `y`. Maps of one row are computed in parallel; for
    /// more rows each takes all threads, and memory for its weights.
    pub(crate) fn apply_all<const N: usize>(
        x: &LinearInputs<'_>,
        maps: [(&Self, &mut [f32]); N],
        scratch: &mut LinearScratch,
    ) {
        if x.rows() == 1 {
            maps.into_par_iter()
                .for_each(|(map, y)| map.apply(x, y, &mut LinearScratch::default()));
        } else {
            for (map, y) in maps {
                map.apply(x, y, scratch);
            }
        }
    }

    /// The elements of what it returns.
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
    /// From `{name}.weight`.
    pub(crate) fn open(
        weights: &mut Weights,
        name: &str,
        size: usize,
        epsilon: f64,
    ) -> Result<Self> {
        Ok(Self { weight: weights.vector(&format!("{name}.weight"), size)?, epsilon })
    }

    /// Elements of a row.
    pub(crate) fn size(&self) -> usize {
        self.weight.len()
    }

    /// Of each row of `x`, `[n, size]`.
    pub(crate) fn apply(&self, x: &[f32], y: &mut [f32]) {
        y.copy_from_slice(x);
        self.apply_in_place(y);
    }

    /// Of each row, `[n, size]`.
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
