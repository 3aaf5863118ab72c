//! Matrix of a linear map, in the stored number type where that is fast to multiply.

use std::sync::Arc;

use half::bf16;

use crate::inputs::LinearInputs;
use crate::packed::{PackedMatrix, PackedPart};
use crate::product::{RowView, Threads, WriteMode, times_transposed};
use crate::row::{self, RowPart};

/// Maximum number of rows whose products are bitwise equal to those of single rows.
pub(crate) const MOST_EQUAL_ROWS: usize = 16;

/// Matrix `[outputs, inputs]`. Clones share the numbers.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    outputs: usize,
    inputs: usize,
    weights: MatrixData,
}

#[derive(Clone, Debug)]
enum MatrixData {
    F32(Arc<Vec<f32>>),
    Bf16(Arc<Vec<bf16>>),
    Packed(Arc<PackedMatrix>),
}

/// Some outputs of the product of a matrix and a row, which one thread computes.
pub(crate) enum ProductPart<'a> {
    F32(RowPart<'a, f32>),
    Bf16(RowPart<'a, bf16>),
    Packed(PackedPart<'a>),
}

impl ProductPart<'_> {
    pub(crate) fn multiply(self) {
        match self {
            Self::F32(part) => part.multiply(),
            Self::Bf16(part) => part.multiply(),
            Self::Packed(part) => part.multiply(),
        }
    }
}

impl Matrix {
    pub(crate) fn f32(weights: Vec<f32>, [outputs, inputs]: [usize; 2]) -> Self {
        assert_eq!(weights.len(), outputs * inputs);
        Self { outputs, inputs, weights: MatrixData::F32(Arc::new(weights)) }
    }

    pub(crate) fn bf16(weights: Vec<bf16>, [outputs, inputs]: [usize; 2]) -> Self {
        assert_eq!(weights.len(), outputs * inputs);
        Self { outputs, inputs, weights: MatrixData::Bf16(Arc::new(weights)) }
    }

    pub(crate) fn packed(weights: PackedMatrix) -> Self {
        let [outputs, inputs] = weights.shape();
        Self { outputs, inputs, weights: MatrixData::Packed(Arc::new(weights)) }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes that the weights take in memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match &self.weights {
            MatrixData::F32(weights) => 4 * weights.len(),
            MatrixData::Bf16(weights) => 2 * weights.len(),
            MatrixData::Packed(weights) => weights.bytes(),
        };
        bytes as u64
    }

    /// Returns row `i`, `[inputs]`.
    pub(crate) fn row(&self, i: usize) -> Vec<f32> {
        let row = i * self.inputs..(i + 1) * self.inputs;
        match &self.weights {
            MatrixData::F32(weights) => weights[row].to_vec(),
            MatrixData::Bf16(weights) => {
                weights[row].iter().map(|weight| weight.to_f32()).collect()
            }
            MatrixData::Packed(weights) => {
                let mut row = vec![0.0; self.inputs];
                weights.read_row(i, &mut row);
                row
            }
        }
    }

    /// Returns whether the numbers equal those of another matrix; number types may differ.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        (self.outputs, self.inputs) == (other.outputs, other.inputs)
            && (0..self.outputs).all(|i| self.row(i) == other.row(i))
    }

    /// Computes `x Wᵀ` from `x` `[n, inputs]`, and writes it to `y` `[n, outputs]` or adds it.
    /// Packed weights, and all weights if `n` is at most [`MOST_EQUAL_ROWS`], are multiplied as
    /// they are stored. Otherwise weights in bf16 are first widened into `wide`, 4 bytes each.
    pub(crate) fn apply(
        &self,
        x: &LinearInputs<'_>,
        y: &mut [f32],
        mode: WriteMode,
        wide: &mut Vec<f32>,
    ) {
        if x.rows() <= MOST_EQUAL_ROWS || matches!(self.weights, MatrixData::Packed(_)) {
            if mode == WriteMode::Overwrite {
                return self.apply_as_stored(x, y);
            }
            let mut products = vec![0.0; y.len()];
            self.apply_as_stored(x, &mut products);
            y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
            return;
        }
        let weights = self.widen(wide);
        let (x, w) = (RowView::dense(x.numbers(), x.rows()), RowView::dense(weights, self.outputs));
        times_transposed(x, w, self.inputs, y, mode, Threads::All);
    }

    /// Multiplies by the weights as they are stored. The products of a row do not depend on the
    /// other rows.
    fn apply_as_stored(&self, x: &LinearInputs<'_>, y: &mut [f32]) {
        match &self.weights {
            MatrixData::F32(weights) => row::multiply(x.numbers(), weights, self.inputs, y),
            MatrixData::Bf16(weights) => row::multiply(x.numbers(), weights, self.inputs, y),
            MatrixData::Packed(weights) => weights.multiply(x.activations(), y),
        }
    }

    /// Appends the parts of the product of a row, whose results overwrite `y` `[outputs]`.
    pub(crate) fn add_parts<'a>(
        &'a self,
        x: &'a LinearInputs<'_>,
        y: &'a mut [f32],
        parts: &mut Vec<ProductPart<'a>>,
    ) {
        assert_eq!((x.rows(), y.len()), (1, self.outputs), "products of one row and every output");
        match &self.weights {
            MatrixData::F32(weights) => {
                let all = row::parts(x.numbers(), weights, self.inputs, y);
                parts.extend(all.map(ProductPart::F32));
            }
            MatrixData::Bf16(weights) => {
                let all = row::parts(x.numbers(), weights, self.inputs, y);
                parts.extend(all.map(ProductPart::Bf16));
            }
            MatrixData::Packed(weights) => {
                parts.extend(weights.parts_of_row(x.activations(), y).map(ProductPart::Packed));
            }
        }
    }

    /// Returns all numbers in f32, in `wide` if they are not stored in f32.
    fn widen<'a>(&'a self, wide: &'a mut Vec<f32>) -> &'a [f32] {
        match &self.weights {
            MatrixData::F32(weights) => weights,
            MatrixData::Bf16(weights) => {
                wide.resize(self.outputs * self.inputs, 0.0);
                row::widen(weights, wide);
                wide
            }
            MatrixData::Packed(_) => unreachable!("multiplied as stored"),
        }
    }
}
