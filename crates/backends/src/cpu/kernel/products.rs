//! Sums and products of contiguous values, `[rows][chunks · CHUNK]`.

use vattention_core::step::Scratch;

use super::{FOLD, LANES, SimdLine};
use crate::cpu::simd::{CHUNK, Level, Simd, SimdElement, SimdKernel};

/// Computes `Σ weight · value`, in the lanes' order, `[stride]`.
///
/// # Panics
/// If there is not a weight for each value.
pub(crate) fn weigh<E: SimdElement>(
    level: Level,
    values: &[E],
    stride: usize,
    weights: &[f32],
) -> Vec<f64> {
    check(values, stride);
    assert_eq!(weights.len() * stride, values.len(), "weights");
    let mut sums = vec![0.0; stride];
    // SAFETY: there is a row of values for each weight, and a row is whole chunks.
    unsafe { level.run(WeighKernel { values, weights, sums: &mut sums }) }
    sums
}

struct WeighKernel<'a, E> {
    values: &'a [E],
    weights: &'a [f32],
    sums: &'a mut [f64],
}

impl<E: SimdElement> SimdKernel for WeighKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { values, weights, sums } = self;
        let (stride, rows) = (sums.len(), weights.len());
        let weights = [weights.as_ptr()];
        add_weighted::<S, E, 1>(values.as_ptr(), stride, rows, weights, sums.as_mut_ptr());
    }
}

/// Adds `Σ weight · value` over `rows` values `[rows][stride]` to `sums` `[H][stride]`, in the
/// lanes' order, for each of `H` lists of weights `[rows]`.
///
/// # Safety
/// The pointers must be valid for these numbers of elements, and a row must be whole chunks.
#[inline(always)]
pub(super) unsafe fn add_weighted<S: Simd, E: SimdElement, const H: usize>(
    values: *const E,
    stride: usize,
    rows: usize,
    weights: [*const f32; H],
    sums: *mut f64,
) {
    for first in (0..rows).step_by(FOLD) {
        let rows = FOLD.min(rows - first);
        let from = values.add(first * stride);
        let mut weights = weights;
        for weights in &mut weights {
            *weights = weights.add(first);
        }
        for offset in (0..stride).step_by(2 * CHUNK) {
            let (from, to) = (from.add(offset), sums.add(offset));
            match (S::WIDE, stride - offset > CHUNK) {
                (true, true) => add_columns::<S, E, H, 2>(from, stride, rows, weights, to),
                (true, false) => add_columns::<S, E, H, 1>(from, stride, rows, weights, to),
                (false, pair) => {
                    // There are too few registers for several heads or chunks.
                    for chunk in 0..=usize::from(pair) {
                        let (from, to) = (from.add(chunk * CHUNK), to.add(chunk * CHUNK));
                        for (head, weights) in weights.into_iter().enumerate() {
                            let to = to.add(head * stride);
                            add_columns::<S, E, 1, 1>(from, stride, rows, [weights], to);
                        }
                    }
                }
            }
        }
    }
}

/// Adds the weighted sums of `M` chunks of each row, which are summed in f32, to `to`
/// `[H][stride]`. Sums of several chunks are computed at the same time, because a processor begins
/// additions to other sums while it waits for one.
#[inline(always)]
unsafe fn add_columns<S: Simd, E: SimdElement, const H: usize, const M: usize>(
    from: *const E,
    stride: usize,
    rows: usize,
    weights: [*const f32; H],
    to: *mut f64,
) {
    let mut sums = [[(S::splat(0.0), S::splat(0.0)); M]; H];
    for row in 0..rows {
        for chunk in 0..M {
            let (low, high) = E::widen::<S>(from.add(row * stride + chunk * CHUNK));
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let (weight, sum) = (S::splat(*weights.add(row)), &mut sums[chunk]);
                *sum = (S::fma(low, weight, sum.0), S::fma(high, weight, sum.1));
            }
        }
    }
    for (head, sums) in sums.iter().enumerate() {
        for (chunk, sum) in sums.iter().enumerate() {
            let to = to.add(head * stride + chunk * CHUNK);
            S::add_wide(to, sum.0);
            S::add_wide(to.add(LANES), sum.1);
        }
    }
}

/// Computes the product of each value with each vector, `[vectors][rows]`. A vector has `stride`
/// elements, in the lanes' order.
///
/// # Panics
/// If the number of elements is not a multiple of `stride`.
pub(crate) fn products<E: SimdElement>(
    level: Level,
    values: &[E],
    stride: usize,
    vectors: &[SimdLine],
) -> Scratch<f32> {
    check(values, stride);
    let (rows, lines) = (values.len() / stride, stride / LANES);
    assert!(vectors.len().is_multiple_of(lines), "whole vectors");
    let mut out = Scratch::new(rows * vectors.len() / lines);
    if rows > 0 {
        let tiles = vectors.chunks(TILE * lines).zip(out.chunks_mut(TILE * rows));
        for (vectors, out) in tiles {
            // SAFETY: rows and vectors are complete, and `out` has an element for each product.
            unsafe { level.run(ProductsKernel { values, stride, vectors, out }) }
        }
    }
    out
}

/// Number of vectors, and of rows, whose products stay in registers.
pub(super) const TILE: usize = 4;

/// Kernel of the products with at most [`TILE`] vectors, `[vectors][rows]`.
pub(super) struct ProductsKernel<'a, E> {
    pub(super) values: &'a [E],
    pub(super) stride: usize,
    pub(super) vectors: &'a [SimdLine],
    pub(super) out: &'a mut [f32],
}

impl<E: SimdElement> SimdKernel for ProductsKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        match self.vectors.len() * LANES / self.stride {
            1 => self.multiply::<S, 1>(),
            2 => self.multiply::<S, 2>(),
            3 => self.multiply::<S, 3>(),
            _ => self.multiply::<S, TILE>(),
        }
    }
}

impl<E: SimdElement> ProductsKernel<'_, E> {
    /// Computes the products with `N` vectors.
    ///
    /// # Safety
    /// Rows and vectors must be complete, and `out` must have an element for each product.
    #[inline(always)]
    pub(super) unsafe fn multiply<S: Simd, const N: usize>(&mut self) {
        let rows = self.values.len() / self.stride;
        for first in (0..rows).step_by(TILE) {
            let count = TILE.min(rows - first);
            let mut sums = [S::no_sums(); LANES];
            if S::WIDE && count == TILE {
                self.dots::<S, N, TILE>(first, &mut sums);
            } else {
                // There are too few registers for several rows.
                for row in 0..count {
                    self.dots::<S, N, 1>(first + row, &mut sums[row..]);
                }
            }
            let mut products = [0.0; LANES];
            S::store(products.as_mut_ptr(), S::sums(&sums));
            let vectors = products.as_chunks::<TILE>().0.iter().zip(self.out.chunks_mut(rows));
            for (products, out) in vectors {
                let out = &mut out[first..][..count];
                // The length is known at compile time in the first case, so no function is called.
                match out.first_chunk_mut::<TILE>() {
                    Some(out) => *out = *products,
                    None => out.copy_from_slice(&products[..count]),
                }
            }
        }
    }

    /// Products of `R` rows from `first` on with `N` vectors, `[N][TILE]`.
    #[inline(always)]
    unsafe fn dots<S: Simd, const N: usize, const R: usize>(&self, first: usize, out: &mut [S::D]) {
        let (stride, vectors) = (self.stride, self.vectors.as_ptr().cast::<f32>());
        let mut sums = [[S::no_sums(); R]; N];
        for offset in (0..stride).step_by(CHUNK) {
            for row in 0..R {
                let (low, high) =
                    E::widen::<S>(self.values.as_ptr().add((first + row) * stride + offset));
                for (vector, sums) in sums.iter_mut().enumerate() {
                    let from = vectors.add(vector * stride + offset);
                    let sum = S::fold(low, S::load(from), sums[row]);
                    sums[row] = S::fold(high, S::load(from.add(LANES)), sum);
                }
            }
        }
        for (vector, sums) in sums.iter().enumerate() {
            for (row, sum) in sums.iter().enumerate() {
                out[vector * TILE + row] = *sum;
            }
        }
    }
}

/// Products of the values within each group of four successive tokens, `[b / 4][4]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct FourProducts {
    /// Products `0·1, 1·2, 2·3, 3·0`.
    pub(crate) neighbours: Vec<f32>,
    /// Products `0·2, 1·3, 2·0, 3·1`.
    pub(crate) opposites: Vec<f32>,
}

impl FourProducts {
    pub(crate) fn clear(&mut self) {
        self.neighbours.clear();
        self.opposites.clear();
    }

    /// Products of each group in the order `0·1, 0·2, 0·3, 1·2, 1·3, 2·3`.
    pub(crate) fn pairs(&self) -> Vec<[f64; 6]> {
        let neighbours = self.neighbours.as_chunks::<4>().0;
        let opposites = self.opposites.as_chunks::<4>().0;
        let pairs = neighbours.iter().zip(opposites);
        pairs.map(|(n, o)| [n[0], o[0], n[3], n[1], o[1], n[2]].map(f64::from)).collect()
    }
}

/// Appends the products of values within each whole group of four rows to `out`, and the norms of
/// all rows to `norms`. Squares of norms below 1e-19 underflow, and those above 1e19 overflow.
///
/// # Panics
/// If the number of elements is not a multiple of `stride`.
pub(crate) fn fours<E: SimdElement>(
    level: Level,
    values: &[E],
    stride: usize,
    out: &mut FourProducts,
    norms: &mut Vec<f32>,
) {
    check(values, stride);
    // SAFETY: values are whole rows of whole chunks.
    unsafe { level.run(FoursKernel { values, stride, out, norms }) }
}

fn check<E>(values: &[E], stride: usize) {
    assert!(stride.is_multiple_of(CHUNK) && values.len().is_multiple_of(stride), "whole rows");
}

struct FoursKernel<'a, E> {
    values: &'a [E],
    stride: usize,
    out: &'a mut FourProducts,
    norms: &'a mut Vec<f32>,
}

impl<E: SimdElement> SimdKernel for FoursKernel<'_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { values, stride, out, norms } = self;
        let fours = values.chunks_exact(4 * stride);
        let (rest, rows) = (fours.remainder(), values.len() / stride);
        for column in [&mut *norms, &mut out.neighbours, &mut out.opposites] {
            column.reserve(rows);
        }
        for four in fours {
            let [squares, neighbours, opposites] = multiply_rows::<S, E, 4>(four.as_ptr(), stride);
            norms.extend(squares.map(f32::sqrt));
            out.neighbours.extend(neighbours);
            out.opposites.extend(opposites);
        }
        for row in rest.chunks_exact(stride) {
            let [[square, ..], ..] = multiply_rows::<S, E, 1>(row.as_ptr(), stride);
            norms.push(square.sqrt());
        }
    }
}

/// Products of `R` rows: of each with itself, `0·1, 1·2, 2·3, 3·0`, and `0·2, 1·3, 2·0, 3·1`.
/// Products of rows from `R` on are unspecified.
#[inline(always)]
unsafe fn multiply_rows<S: Simd, E: SimdElement, const R: usize>(
    rows: *const E,
    stride: usize,
) -> [[f32; 4]; 3] {
    const PAIRS: [[usize; 2]; 10] =
        [[0, 0], [1, 1], [2, 2], [3, 3], [0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]];
    let mut sums = [S::no_sums(); LANES];
    for offset in (0..stride).step_by(CHUNK) {
        for (sum, [i, j]) in sums.iter_mut().zip(PAIRS) {
            if i < R && j < R {
                let a = E::widen::<S>(rows.add(i * stride + offset));
                let b = E::widen::<S>(rows.add(j * stride + offset));
                *sum = S::fold(a.0, b.0, S::fold(a.1, b.1, *sum));
            }
        }
    }
    let mut products = [0.0; LANES];
    S::store(products.as_mut_ptr(), S::sums(&sums));
    let fours = products.as_chunks::<4>().0;
    let [a, b, ..] = fours[2];
    [fours[0], fours[1], [a, b, a, b]]
}
