//! One row times a matrix: what a decoded token does with every weight.
//!
//! Each weight is read once and used once, so the speed is that of memory, if the reading is in
//! order and on all threads. Candle's product of matrices reaches about half of that for one row.

use candle_core::{Result, Storage, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Sums of a dot product that are independent of each other.
const LANES: usize = 64;

/// Weights that a thread takes at once: 256 KiB. Fewer are not worth waking another.
const PART: usize = 1 << 16;

/// `x Wᵀ` of `x` `[1, in]` and `W` `[out, in]`: `[1, out]`, in f32. The result does not depend on
/// the number of threads.
pub(crate) fn times(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let (storage, layout) = weight.storage_and_layout();
    let (Storage::Cpu(storage), Some((first, last))) = (&*storage, layout.contiguous_offsets())
    else {
        return x.matmul(&weight.t()?);
    };
    let (x, weights) = (x.flatten_all()?.to_vec1()?, &storage.as_slice::<f32>()?[first..last]);
    if x.len() != inputs || inputs == 0 {
        candle_core::bail!("a row of {} numbers; expected {inputs}, at least 1", x.len());
    }
    let mut y = vec![0.0; outputs];
    let rows = PART.div_ceil(inputs);
    if outputs <= rows {
        dots(&x, weights, &mut y);
    } else {
        let parts = y.par_chunks_mut(rows).zip(weights.par_chunks(rows * inputs));
        parts.for_each(|(y, weights)| dots(&x, weights, y));
    }
    Tensor::from_vec(y, (1, outputs), weight.device())
}

/// The dot product of `x` with each row of `weights` `[y.len(), x.len()]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn dots(x: &[f32], weights: &[f32], y: &mut [f32]) {
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    for (y, weights) in y.iter_mut().zip(weights.chunks_exact(x.len())) {
        let (w_lanes, w_rest) = weights.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        for (x, w) in x_lanes.iter().zip(w_lanes) {
            for i in 0..LANES {
                sums[i] += x[i] * w[i];
            }
        }
        let rest: f32 = x_rest.iter().zip(w_rest).map(|(x, w)| x * w).sum();
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

    #[test]
    fn a_row_times_a_matrix_is_what_candle_says() {
        for inputs in [1, 63, 64, 200, 513] {
            for outputs in [1, 7, PART / inputs + 3] {
                let (x, all) = (numbers(1, inputs), numbers(outputs + 2, inputs));
                let weight = all.narrow(0, 1, outputs).unwrap();
                let found = times(&x, &weight).unwrap();
                assert_eq!(found.dims2().unwrap(), (1, outputs));
                let expected = x.matmul(&weight.t().unwrap()).unwrap();
                let found: Vec<f32> = found.i(0).unwrap().to_vec1().unwrap();
                let expected: Vec<f32> = expected.i(0).unwrap().to_vec1().unwrap();
                let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 * inputs as f32;
                assert!(found.iter().zip(&expected).all(close), "{outputs} of {inputs}");
            }
        }
    }

    #[test]
    fn weights_that_do_not_lie_in_order_are_read_all_the_same() {
        let (x, weight) = (numbers(1, 5), numbers(5, 9).t().unwrap());
        let expected = x.matmul(&weight.t().unwrap()).unwrap();
        let found = times(&x, &weight).unwrap();
        assert_eq!(found.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
    }

    #[test]
    fn a_row_of_another_length_is_refused() {
        assert!(times(&numbers(1, 4), &numbers(3, 5)).is_err());
    }
}
