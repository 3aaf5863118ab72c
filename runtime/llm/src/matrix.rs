//! The matrix of a linear map, in memory as it is stored where that is fast to multiply.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Result as Numbers, Tensor};
use half::bf16;
use rayon::prelude::*;

use crate::inputs::Inputs;
use crate::packed::PackedMatrix;
use crate::product::{Into, RowView, Threads, times_transposed};
use crate::row;

/// Weights that a thread dequantises at once.
const PART: usize = 1 << 16;

/// Rows up to which packed weights are multiplied by integers.
const FEW_ROWS: usize = 8;

/// `[outputs, inputs]`. Clones share the numbers.
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
    /// Other blocks of GGUF, which candle multiplies.
    Quantised(Arc<QTensor>),
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

    /// Of two dimensions, whose rows are whole blocks.
    pub(crate) fn quantised(weights: QTensor) -> Numbers<Self> {
        let (outputs, inputs) = weights.shape().dims2()?;
        Ok(Self { outputs, inputs, weights: MatrixData::Quantised(Arc::new(weights)) })
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// What its weights take in memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match &self.weights {
            MatrixData::F32(weights) => 4 * weights.len(),
            MatrixData::Bf16(weights) => 2 * weights.len(),
            MatrixData::Packed(weights) => weights.bytes(),
            MatrixData::Quantised(weights) => weights.storage_size_in_bytes(),
        };
        bytes as u64
    }

    /// One row of it, `[inputs]`.
    pub(crate) fn row(&self, i: usize) -> Numbers<Vec<f32>> {
        let at = i * self.inputs..(i + 1) * self.inputs;
        Ok(match &self.weights {
            MatrixData::F32(weights) => weights[at].to_vec(),
            MatrixData::Bf16(weights) => weights[at].iter().map(|weight| weight.to_f32()).collect(),
            MatrixData::Packed(weights) => {
                let mut row = vec![0.0; self.inputs];
                weights.read_row(i, &mut row);
                row
            }
            MatrixData::Quantised(weights) => dequantised(weights, i, 1)?,
        })
    }

    /// Returns whether the numbers equal those of another matrix; number types may differ.
    pub(crate) fn equals(&self, other: &Self) -> Numbers<bool> {
        if (self.outputs, self.inputs) != (other.outputs, other.inputs) {
            return Ok(false);
        }
        for i in 0..self.outputs {
            if self.row(i)? != other.row(i)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `x Wᵀ` of `x` `[n, inputs]`, into or added to `y` `[n, outputs]`. Few rows are multiplied with
    /// weights as they are stored; for more, those that are not in f32 are widened into `wide`, 4
    /// bytes for each.
    pub(crate) fn apply(
        &self,
        x: &Inputs<'_>,
        y: &mut [f32],
        into: Into,
        wide: &mut Vec<f32>,
    ) -> Numbers<()> {
        let n = x.rows();
        if n <= self.few_rows() {
            if into == Into::Fresh {
                return self.apply_to_few(x, y);
            }
            let mut products = vec![0.0; y.len()];
            self.apply_to_few(x, &mut products)?;
            y.iter_mut().zip(products).for_each(|(y, product)| *y += product);
            return Ok(());
        }
        let weights = self.widened(wide)?;
        let (x, w) = (RowView::dense(x.numbers(), n), RowView::dense(weights, self.outputs));
        times_transposed(x, w, self.inputs, y, into, Threads::All);
        Ok(())
    }

    /// Rows up to which weights are multiplied as they are stored.
    fn few_rows(&self) -> usize {
        match self.weights {
            MatrixData::Packed(_) => FEW_ROWS,
            _ => 1,
        }
    }

    fn apply_to_few(&self, x: &Inputs<'_>, y: &mut [f32]) -> Numbers<()> {
        match &self.weights {
            MatrixData::F32(weights) => row::product(x.numbers(), weights, y),
            MatrixData::Bf16(weights) => row::product(x.numbers(), weights, y),
            MatrixData::Packed(weights) => weights.multiply(x.activations(), y),
            MatrixData::Quantised(weights) => {
                let x = Tensor::new(x.numbers(), &Device::Cpu)?.unsqueeze(0)?;
                let product = x.apply_op1_no_bwd(&**weights)?;
                y.copy_from_slice(&product.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(())
    }

    /// All numbers in f32: these, or `wide` filled with them.
    fn widened<'a>(&'a self, wide: &'a mut Vec<f32>) -> Numbers<&'a [f32]> {
        if let MatrixData::F32(weights) = &self.weights {
            return Ok(weights);
        }
        wide.resize(self.outputs * self.inputs, 0.0);
        match &self.weights {
            MatrixData::F32(_) => {}
            MatrixData::Bf16(weights) => row::widen(weights, wide),
            MatrixData::Packed(weights) => weights.read_all(wide),
            MatrixData::Quantised(weights) => {
                let rows = PART.div_ceil(self.inputs);
                let parts = wide.par_chunks_mut(rows * self.inputs).enumerate();
                parts.try_for_each(|(part, wide)| {
                    let numbers = dequantised(weights, part * rows, wide.len() / self.inputs)?;
                    wide.copy_from_slice(&numbers);
                    Numbers::Ok(())
                })?;
            }
        }
        Ok(wide)
    }
}

/// Whether candle multiplies a row with blocks of this type at least as fast as this crate does
/// with bf16: measured by `cargo bench --bench row`, on a machine with AVX2.
pub(crate) fn candle_is_fast(dtype: GgmlDType) -> bool {
    use GgmlDType::{Q4K, Q5K, Q6K};
    matches!(dtype, Q4K | Q5K | Q6K)
}

/// `count` rows of a matrix from `first` on, in f32.
fn dequantised(weights: &QTensor, first: usize, count: usize) -> Numbers<Vec<f32>> {
    let (outputs, inputs) = weights.shape().dims2()?;
    let bytes = weights.data()?;
    let row = bytes.len() / outputs;
    let rows = Cow::Borrowed(&bytes[first * row..(first + count) * row]);
    let storage = QStorage::from_data(rows, &Device::Cpu, weights.dtype())?;
    QTensor::new(storage, (count, inputs))?.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
}
