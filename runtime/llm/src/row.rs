//! One row times a matrix: what a decoded token does with every weight.
//!
//! Each weight is read once and used once, so the speed is that of memory, if the reading is in
//! order and on all threads: weights in bf16 are read in half the time, and become f32 on the way.

use half::bf16;
use multiversion::multiversion;
use rayon::prelude::*;

/// Sums of a dot product that are independent of each other.
const LANES: usize = 64;

/// Weights that a thread takes at once: 256 KiB in f32. Fewer are not worth waking another.
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

/// The dot product of `x` with each row of `weights` `[y.len(), x.len()]`, on all threads. The
/// result depends neither on the number of threads nor on how equal weights are stored.
pub(crate) fn product<W: Weight>(x: &[f32], weights: &[W], y: &mut [f32]) {
    assert_eq!(weights.len(), x.len() * y.len());
    let rows = PART.div_ceil(x.len());
    if y.len() <= rows {
        dots(x, weights, y);
    } else {
        let parts = y.par_chunks_mut(rows).zip(weights.par_chunks(rows * x.len()));
        parts.for_each(|(y, weights)| dots(x, weights, y));
    }
}

/// Weights in f32, on all threads.
pub(crate) fn widen<W: Weight>(weights: &[W], wide: &mut [f32]) {
    let parts = wide.par_chunks_mut(PART).zip(weights.par_chunks(PART));
    parts.for_each(|(wide, narrow)| {
        wide.iter_mut().zip(narrow).for_each(|(wide, weight)| *wide = weight.widen());
    });
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
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 1.7).sin()).collect()
    }

    fn narrow(numbers: &[f32]) -> Vec<bf16> {
        numbers.iter().map(|&x| bf16::from_f32(x)).collect()
    }

    fn found<W: Weight>(x: &[f32], weights: &[W]) -> Vec<f32> {
        let mut y = vec![0.0; weights.len() / x.len()];
        product(x, weights, &mut y);
        y
    }

    #[test]
    fn a_row_times_a_matrix_is_as_defined() {
        for inputs in [1, 63, 64, 200, 513] {
            for outputs in [1, 7, PART / inputs + 3] {
                let (x, weights) = (numbers(inputs), numbers(inputs * outputs));
                let found = found(&x, &weights);
                for (row, y) in weights.chunks_exact(inputs).zip(found) {
                    let exact: f64 =
                        x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    assert!((f64::from(y) - exact).abs() < 1e-5 * inputs as f64);
                }
            }
        }
    }

    #[test]
    fn equal_weights_give_equal_bits_however_they_are_stored() {
        for inputs in (1..=2 * LANES + 1).chain([200, 513]) {
            let x = numbers(inputs);
            let narrow = narrow(&numbers(inputs * (PART / inputs + 3)));
            let mut wide = vec![0.0; narrow.len()];
            widen(&narrow, &mut wide);
            let bits = |y: Vec<f32>| y.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert!(bits(found(&x, &narrow)) == bits(found(&x, &wide)), "{inputs}");
        }
    }

    /// Also the largest and the smallest, zeros of both signs, and subnormal ones.
    #[test]
    fn every_number_in_bf16_is_itself_in_f32() {
        for number in (0..=u16::MAX).map(bf16::from_bits).filter(|number| !number.is_nan()) {
            assert_eq!(number.widen().to_bits(), number.to_f32().to_bits());
        }
    }

    #[test]
    fn a_matrix_widens_to_its_numbers() {
        let narrow = narrow(&numbers(3 * PART + 15));
        let mut wide = vec![0.0; narrow.len()];
        widen(&narrow, &mut wide);
        assert!(narrow.iter().zip(&wide).all(|(a, b)| a.to_f32() == *b));
    }
}
