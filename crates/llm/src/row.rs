//! One row times a matrix: what a decoded token does with every weight.
//!
//! Each weight is read once and used once, so the speed is that of memory, if the reading is in
//! order and on all threads: weights in bf16 are read in half the time, and become f32 on the way.
//! Candle's product of matrices reaches about half of that for one row, and knows no such mixture.

use candle_core::{CpuStorage, DType, Result, Storage, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

use crate::widen::Weight;

/// Sums of a dot product that are independent of each other.
const LANES: usize = 64;

/// Weights that a thread takes at once: 256 KiB in f32. Fewer are not worth waking another.
const PART: usize = 1 << 16;

/// `x Wᵀ` of `x` `[1, in]` in f32 and `W` `[out, in]` in f32 or bf16: `[1, out]`, in f32. The result
/// depends neither on the number of threads nor on how equal weights are stored.
pub(crate) fn times(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let (storage, layout) = weight.storage_and_layout();
    let (Storage::Cpu(storage), Some((first, last))) = (&*storage, layout.contiguous_offsets())
    else {
        return x.matmul(&weight.to_dtype(DType::F32)?.t()?);
    };
    let x: Vec<f32> = x.flatten_all()?.to_vec1()?;
    if x.len() != inputs || inputs == 0 {
        candle_core::bail!("a row of {} numbers; expected {inputs}, at least 1", x.len());
    }
    let y = match storage {
        CpuStorage::BF16(weights) => product(&x, &weights[first..last], outputs),
        _ => product(&x, &storage.as_slice::<f32>()?[first..last], outputs),
    };
    Tensor::from_vec(y, (1, outputs), weight.device())
}

/// The dot product of `x` with each row of `weights` `[outputs, x.len()]`, on all threads.
fn product<W: Weight>(x: &[f32], weights: &[W], outputs: usize) -> Vec<f32> {
    let mut y = vec![0.0; outputs];
    let rows = PART.div_ceil(x.len());
    if outputs <= rows {
        dots(x, weights, &mut y);
    } else {
        let parts = y.par_chunks_mut(rows).zip(weights.par_chunks(rows * x.len()));
        parts.for_each(|(y, weights)| dots(x, weights, y));
    }
    y
}

/// The dot product of `x` with each row of `weights` `[y.len(), x.len()]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn dots<W: Weight>(x: &[f32], weights: &[W], y: &mut [f32]) {
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    for (y, weights) in y.iter_mut().zip(weights.chunks_exact(x.len())) {
        let (w_lanes, w_rest) = weights.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for (x, w) in x_lanes.iter().zip(w_lanes) {
            for i in 0..LANES {
                sums[i] += x[i] * w[i].widen();
            }
        }
        let rest: f32 = x_rest.iter().zip(w_rest).map(|(x, w)| x * w.widen()).sum();
        *y = sums.iter().sum::<f32>() + rest;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, IndexOp};

    use super::*;

    fn numbers(rows: usize, columns: usize) -> Tensor {
        let number = |i| (i as f32 * 1.7).sin();
        let numbers = (0..rows * columns).map(number).collect();
        Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap()
    }

    fn found(x: &Tensor, weight: &Tensor) -> Vec<f32> {
        times(x, weight).unwrap().i(0).unwrap().to_vec1().unwrap()
    }

    #[test]
    fn a_row_times_a_matrix_is_what_candle_says() {
        for inputs in [1, 63, 64, 200, 513] {
            for outputs in [1, 7, PART / inputs + 3] {
                let (x, all) = (numbers(1, inputs), numbers(outputs + 2, inputs));
                for dtype in [DType::F32, DType::BF16] {
                    let weight = all.to_dtype(dtype).unwrap().narrow(0, 1, outputs).unwrap();
                    let found = found(&x, &weight);
                    assert_eq!(found.len(), outputs);
                    let weight = weight.to_dtype(DType::F32).unwrap();
                    let expected = x.matmul(&weight.t().unwrap()).unwrap();
                    let expected: Vec<f32> = expected.i(0).unwrap().to_vec1().unwrap();
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 * inputs as f32;
                    let close = found.iter().zip(&expected).all(close);
                    assert!(close, "{outputs} of {inputs} in {dtype:?}");
                }
            }
        }
    }

    #[test]
    fn equal_weights_give_equal_bits_however_they_are_stored() {
        for inputs in (1..=2 * LANES + 1).chain([200, 513]) {
            let (x, weight) = (numbers(1, inputs), numbers(PART / inputs + 3, inputs));
            let narrow = weight.to_dtype(DType::BF16).unwrap();
            let wide = narrow.to_dtype(DType::F32).unwrap();
            let bits = |weight| -> Vec<u32> {
                found(&x, weight).iter().map(|number| number.to_bits()).collect()
            };
            assert!(bits(&narrow) == bits(&wide), "{inputs}");
        }
    }

    #[test]
    fn weights_that_do_not_lie_in_order_are_read_all_the_same() {
        for dtype in [DType::F32, DType::BF16] {
            let (x, weight) = (numbers(1, 5), numbers(5, 9).to_dtype(dtype).unwrap());
            let expected = x.matmul(&weight.to_dtype(DType::F32).unwrap()).unwrap();
            let expected: Vec<f32> = expected.i(0).unwrap().to_vec1().unwrap();
            let found = found(&x, &weight.t().unwrap());
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(found.len() == 9 && found.iter().zip(&expected).all(close), "{dtype:?}");
        }
    }

    #[test]
    fn a_row_of_another_length_is_refused() {
        assert!(times(&numbers(1, 4), &numbers(3, 5)).is_err());
    }
}
