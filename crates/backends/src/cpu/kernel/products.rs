//! Sums and products of values that lie one after the other, `[rows][chunks · CHUNK]`.

use super::{FOLD, LANES, Line};
use crate::cpu::simd::{CHUNK, Element, Kernel, Level, Simd};

/// `Σ weight · value` with each of some lists of weights, in the lanes' order, `[H][chunks · CHUNK]`.
///
/// # Panics
/// If there is not a weight for each value.
pub(crate) fn weigh<E: Element, const H: usize>(
    level: Level,
    values: &[E],
    stride: usize,
    weights: [&[f32]; H],
) -> [Vec<f64>; H] {
    check(values, stride);
    assert!(weights.iter().all(|weights| weights.len() * stride == values.len()), "weights");
    // SAFETY: there is a row of values for each weight, and a row is whole chunks.
    unsafe { level.run(Weigh { values, stride, weights }) }
}

struct Weigh<'a, E, const H: usize> {
    values: &'a [E],
    stride: usize,
    weights: [&'a [f32]; H],
}

impl<E: Element, const H: usize> Kernel for Weigh<'_, E, H> {
    type Output = [Vec<f64>; H];

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> [Vec<f64>; H] {
        let Self { values, stride, weights } = self;
        let rows = values.len() / stride;
        let mut sums = [(); H].map(|()| vec![0.0; stride]);
        for first in (0..rows).step_by(FOLD) {
            let rows = FOLD.min(rows - first);
            for at in (0..stride).step_by(CHUNK) {
                let from = values.as_ptr().add(first * stride + at);
                let lanes: [[f32; CHUNK]; H] = if S::WIDE {
                    weighed::<S, E, H>(from, stride, rows, weights.map(|w| w.as_ptr().add(first)))
                } else {
                    let of =
                        |w: &[f32]| weighed::<S, E, 1>(from, stride, rows, [w.as_ptr().add(first)]);
                    weights.map(|weights| of(weights)[0])
                };
                for (sums, lanes) in sums.iter_mut().zip(lanes) {
                    let folded = sums[at..at + CHUNK].iter_mut().zip(lanes);
                    folded.for_each(|(sum, lane)| *sum += f64::from(lane));
                }
            }
        }
        sums
    }
}

/// Sums of one chunk of rows.
#[inline(always)]
unsafe fn weighed<S: Simd, E: Element, const H: usize>(
    from: *const E,
    stride: usize,
    rows: usize,
    weights: [*const f32; H],
) -> [[f32; CHUNK]; H] {
    let mut sums = [(S::splat(0.0), S::splat(0.0)); H];
    for row in 0..rows {
        let (low, high) = E::widen::<S>(from.add(row * stride));
        for (sum, weights) in sums.iter_mut().zip(weights) {
            let weight = S::splat(*weights.add(row));
            *sum = (S::fma(low, weight, sum.0), S::fma(high, weight, sum.1));
        }
    }
    let mut lanes = [[0.0; CHUNK]; H];
    for (lanes, sum) in lanes.iter_mut().zip(sums) {
        S::store(lanes.as_mut_ptr(), sum.0);
        S::store(lanes.as_mut_ptr().add(LANES), sum.1);
    }
    lanes
}

/// The product of each value with a vector in the lanes' order, `[rows]`.
///
/// # Panics
/// If the vector is not as long as a row.
pub(crate) fn dots<E: Element>(level: Level, values: &[E], vector: &[Line]) -> Vec<f32> {
    let stride = vector.len() * LANES;
    check(values, stride);
    // SAFETY: rows are as long as the vector, in whole chunks.
    unsafe { level.run(Dots { values, vector }) }
}

struct Dots<'a, E> {
    values: &'a [E],
    vector: &'a [Line],
}

impl<E: Element> Kernel for Dots<'_, E> {
    type Output = Vec<f32>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Vec<f32> {
        let Self { values, vector } = self;
        let stride = vector.len() * LANES;
        let mut out = vec![0.0; values.len() / stride];
        for (part, out) in out.chunks_mut(LANES).enumerate() {
            let first = values.as_ptr().add(part * LANES * stride);
            let mut sums = [S::splat(0.0); LANES];
            for (row, sum) in sums.iter_mut().enumerate().take(out.len()) {
                for (at, lines) in vector.chunks_exact(CHUNK / LANES).enumerate() {
                    let (low, high) = E::widen::<S>(first.add(row * stride + at * CHUNK));
                    let (a, b) = (S::load(lines[0].0.as_ptr()), S::load(lines[1].0.as_ptr()));
                    *sum = S::fma(low, a, S::fma(high, b, *sum));
                }
            }
            let mut products = [0.0; LANES];
            S::store(products.as_mut_ptr(), S::sums(&sums));
            out.copy_from_slice(&products[..out.len()]);
        }
        out
    }
}

/// The products of values in fours, `[fours]`: of the first with the second, the third, the fourth, of the second
/// with the third, the fourth, and of the third with the fourth.
///
/// # Panics
/// If there are no whole fours.
pub(crate) fn fours<E: Element>(level: Level, values: &[E], stride: usize) -> Vec<[f32; 6]> {
    check(values, stride);
    assert!(values.len().is_multiple_of(4 * stride), "whole fours");
    // SAFETY: four rows of whole chunks for each.
    unsafe { level.run(Fours { values, stride }) }
}

fn check<E>(values: &[E], stride: usize) {
    assert!(stride.is_multiple_of(CHUNK) && values.len().is_multiple_of(stride), "whole rows");
}

struct Fours<'a, E> {
    values: &'a [E],
    stride: usize,
}

impl<E: Element> Kernel for Fours<'_, E> {
    type Output = Vec<[f32; 6]>;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Vec<[f32; 6]> {
        let Self { values, stride } = self;
        let mut out = Vec::with_capacity(values.len() / (4 * stride));
        for first in (0..values.len()).step_by(4 * stride) {
            out.push(four::<S, E>(values.as_ptr().add(first), stride));
        }
        out
    }
}

/// The products of four rows.
#[inline(always)]
unsafe fn four<S: Simd, E: Element>(rows: *const E, stride: usize) -> [f32; 6] {
    let mut sums = [S::splat(0.0); LANES];
    for at in (0..stride).step_by(CHUNK) {
        let mut place = 0;
        for i in 0..3 {
            let a = E::widen::<S>(rows.add(i * stride + at));
            for j in i + 1..4 {
                let b = E::widen::<S>(rows.add(j * stride + at));
                sums[place] = S::fma(a.0, b.0, S::fma(a.1, b.1, sums[place]));
                place += 1;
            }
        }
    }
    let mut products = [0.0; LANES];
    S::store(products.as_mut_ptr(), S::sums(&sums));
    let [a, b, c, d, e, f, ..] = products;
    [a, b, c, d, e, f]
}
