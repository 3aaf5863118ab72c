//! Product of a few rows and a matrix, which a decode step computes with every weight.
//!
//! Each weight is read from memory once and used once per row, so memory bandwidth limits the speed
//! of one row if all threads read in order. Weights in bf16 take half the time of f32, and are
//! widened to f32 in registers.

use half::bf16;
use multiversion::multiversion;
use rayon::prelude::*;
use vattention_backends::process;

/// Number of independent sums of a dot product.
const LANES: usize = 64;

/// Weights per parallel job: 256 KiB in f32. Smaller jobs do not pay for waking a thread.
const PART: usize = 1 << 16;

/// Stored number of a matrix.
pub(crate) trait Weight: Copy + Sync {
    /// Converts the number to f32, exactly.
    fn widen(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Weight for bf16 {
    /// Converts without the check for NaN of `to_f32`; weights are finite.
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

/// Computes `x Wᵀ`: `x` is `[n, inputs]`, `weights` `[outputs, inputs]`, `y` `[n, outputs]`, on
/// all threads. A row of the result depends neither on the other rows, nor on the number of
/// threads, nor on the type in which equal weights are stored.
pub(crate) fn multiply<W: Weight>(x: &[f32], weights: &[W], inputs: usize, y: &mut [f32]) {
    let (n, outputs) = (x.len() / inputs, weights.len() / inputs);
    assert_eq!((x.len(), weights.len()), (n * inputs, outputs * inputs));
    assert_eq!(y.len(), n * outputs);
    if n == 1 {
        return process(parts(x, weights, inputs, y).collect(), RowPart::multiply);
    }
    let mut products = vec![0.0; y.len()];
    process(parts(x, weights, inputs, &mut products).collect(), RowPart::multiply);
    for (output, products) in products.chunks_exact(n).enumerate() {
        for (row, product) in products.iter().enumerate() {
            y[row * outputs + output] = *product;
        }
    }
}

/// Some outputs of a product, which one thread computes.
pub(crate) struct RowPart<'a, W> {
    x: &'a [f32],
    weights: &'a [W],
    inputs: usize,
    /// `[outputs, n]`
    products: &'a mut [f32],
}

/// Parts of a product, whose result `products` is `W xᵀ`, `[outputs, n]`.
pub(crate) fn parts<'a, W: Weight>(
    x: &'a [f32],
    weights: &'a [W],
    inputs: usize,
    products: &'a mut [f32],
) -> impl Iterator<Item = RowPart<'a, W>> {
    let (n, outputs) = (x.len() / inputs, PART.div_ceil(inputs));
    let parts = products.chunks_mut(outputs * n).zip(weights.chunks(outputs * inputs));
    parts.map(move |(products, weights)| RowPart { x, weights, inputs, products })
}

impl<W: Weight> RowPart<'_, W> {
    pub(crate) fn multiply(self) {
        multiply_rows(self.x, self.weights, self.inputs, self.products);
    }
}

/// Converts weights to f32, on all threads.
pub(crate) fn widen<W: Weight>(weights: &[W], wide: &mut [f32]) {
    let parts = wide.par_chunks_mut(PART).zip(weights.par_chunks(PART));
    parts.for_each(|(wide, narrow)| {
        wide.iter_mut().zip(narrow).for_each(|(wide, weight)| *wide = weight.widen());
    });
}

/// Computes `W xᵀ`, `[outputs, n]`. The weights of an output stay in the cache for all rows.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn multiply_rows<W: Weight>(x: &[f32], weights: &[W], inputs: usize, products: &mut [f32]) {
    let n = x.len() / inputs;
    for (products, weights) in products.chunks_exact_mut(n).zip(weights.chunks_exact(inputs)) {
        let (w_lanes, w_rest) = weights.as_chunks::<LANES>();
        for (product, x) in products.iter_mut().zip(x.chunks_exact(inputs)) {
            let (x_lanes, x_rest) = x.as_chunks::<LANES>();
            let mut sums = [0.0_f32; LANES];
            for (x, w) in x_lanes.iter().zip(w_lanes) {
                for i in 0..LANES {
                    sums[i] += x[i] * w[i].widen();
                }
            }
            let rest: f32 = x_rest.iter().zip(w_rest).map(|(x, w)| x * w.widen()).sum();
            *product = sums.iter().sum::<f32>() + rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 1.7).sin()).collect()
    }

    fn to_bf16(numbers: &[f32]) -> Vec<bf16> {
        numbers.iter().map(|&x| bf16::from_f32(x)).collect()
    }

    fn multiply_new<W: Weight>(x: &[f32], weights: &[W]) -> Vec<f32> {
        let mut y = vec![0.0; weights.len() / x.len()];
        multiply(x, weights, x.len(), &mut y);
        y
    }

    #[test]
    fn products_match_their_definition() {
        for inputs in [1, 63, 64, 200, 513] {
            for outputs in [1, 7, PART / inputs + 3] {
                let (x, weights) = (numbers(inputs), numbers(inputs * outputs));
                let found = multiply_new(&x, &weights);
                for (row, y) in weights.chunks_exact(inputs).zip(found) {
                    let exact: f64 =
                        x.iter().zip(row).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    assert!((f64::from(y) - exact).abs() < 1e-5 * inputs as f64);
                }
            }
        }
    }

    #[test]
    fn rows_together_are_equal_to_single_rows() {
        for (n, inputs) in [(2, 1), (3, 63), (5, 64), (16, 200), (16, 513)] {
            let (x, weights) =
                (numbers(n * inputs), to_bf16(&numbers(inputs * (PART / inputs + 3))));
            let single: Vec<f32> =
                x.chunks_exact(inputs).flat_map(|x| multiply_new(x, &weights)).collect();
            let mut together = vec![0.0; single.len()];
            multiply(&x, &weights, inputs, &mut together);
            assert!(together == single, "{n} rows of {inputs}");
        }
    }

    #[test]
    fn equal_weights_give_equal_bits_in_both_types() {
        for inputs in (1..=2 * LANES + 1).chain([200, 513]) {
            let x = numbers(inputs);
            let narrow = to_bf16(&numbers(inputs * (PART / inputs + 3)));
            let mut wide = vec![0.0; narrow.len()];
            widen(&narrow, &mut wide);
            let bits = |y: Vec<f32>| y.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            assert!(bits(multiply_new(&x, &narrow)) == bits(multiply_new(&x, &wide)), "{inputs}");
        }
    }

    /// Includes the largest and smallest numbers, zeros of both signs, and subnormal numbers.
    #[test]
    fn every_bf16_number_is_unchanged_in_f32() {
        for number in (0..=u16::MAX).map(bf16::from_bits).filter(|number| !number.is_nan()) {
            assert_eq!(number.widen().to_bits(), number.to_f32().to_bits());
        }
    }

    #[test]
    fn matrices_are_widened_exactly() {
        let narrow = to_bf16(&numbers(3 * PART + 15));
        let mut wide = vec![0.0; narrow.len()];
        widen(&narrow, &mut wide);
        assert!(narrow.iter().zip(&wide).all(|(a, b)| a.to_f32() == *b));
    }
}
