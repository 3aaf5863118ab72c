//! Weights as numbers in f32, however they are stored.

use candle_core::{CpuStorage, DType, Result, Storage, Tensor};
use half::bf16;
use rayon::prelude::*;

/// Weights that a thread takes at once.
const PART: usize = 1 << 16;

/// A number of a matrix, as it is stored.
pub(crate) trait Weight: Copy + Sync {
    /// Exactly this number.
    fn widen(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Weight for bf16 {
    /// `to_f32` would also look for NaNs, which weights are not.
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// A tensor in f32: itself, or a copy, which is made on all threads if it lies in order in bf16.
pub(crate) fn widened(weights: &Tensor) -> Result<Tensor> {
    let (storage, layout) = weights.storage_and_layout();
    let (Storage::Cpu(CpuStorage::BF16(narrow)), Some((first, last))) =
        (&*storage, layout.contiguous_offsets())
    else {
        return weights.to_dtype(DType::F32);
    };
    let narrow = &narrow[first..last];
    let mut wide = vec![0.0; narrow.len()];
    let parts = wide.par_chunks_mut(PART).zip(narrow.par_chunks(PART));
    parts.for_each(|(wide, narrow)| {
        wide.iter_mut().zip(narrow).for_each(|(wide, weight)| *wide = weight.widen());
    });
    Tensor::from_vec(wide, weights.shape(), weights.device())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Also the largest and the smallest, zeros of both signs, and subnormal ones.
    #[test]
    fn every_number_in_bf16_is_itself_in_f32() {
        for number in (0..=u16::MAX).map(bf16::from_bits).filter(|number| !number.is_nan()) {
            assert_eq!(number.widen().to_bits(), number.to_f32().to_bits());
        }
    }

    #[test]
    fn a_matrix_widens_to_what_candle_says() {
        let number = |i| (i as f32 * 1.7).sin();
        let numbers: Vec<f32> = (0..3 * PART + 15).map(number).collect();
        let all = Tensor::from_vec(numbers, (PART + 5, 3), &Device::Cpu).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let all = all.to_dtype(dtype).unwrap();
            for weights in [all.narrow(0, 2, PART + 1).unwrap(), all.t().unwrap()] {
                let (found, expected) = (widened(&weights), weights.to_dtype(DType::F32));
                let [found, expected] = [found, expected].map(Result::unwrap);
                let rows = |tensor: &Tensor| tensor.to_vec2::<f32>().unwrap();
                assert!(rows(&found) == rows(&expected), "{dtype:?}");
            }
        }
    }
}
