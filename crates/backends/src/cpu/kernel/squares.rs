//! Squares of the terms of a weighted sample, and products of neighbouring terms for the effective
//! rank, of tokens that were drawn independently of each other.

use vattention_core::sample::TokenSquares;

use super::spread::load;
use super::{FourProducts, LANES};
use crate::cpu::simd::{Level, Simd, SimdKernel};

/// Terms of a sample's tokens for one query head, in draw order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenTerms<'a> {
    /// `e`, at most about 1, `[b]`.
    pub(crate) e: &'a [f32],
    /// `|v|`, `[b]`.
    pub(crate) norms: &'a [f32],
    /// `v · out`, `[b]`.
    pub(crate) dot_out: &'a [f32],
    /// Products of the values within each whole group of four tokens.
    pub(crate) fours: &'a FourProducts,
    /// Variance factor φ, `[b]`.
    pub(crate) factors: &'a [f32],
    /// `|out|`
    pub(crate) out_norm: f32,
    /// Factor of values and of `out`, so that fourth powers stay in range.
    pub(crate) unit: f32,
}

/// Sums over the tokens of a sample, of terms `w = e (v − out)` times [`TokenTerms::unit`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TermSums {
    /// `Σ φ |w|²`
    pub(crate) trace: f64,
    /// `Σ (φ |w|²)²`
    pub(crate) squared: f64,
    /// `Σ φ φ' (w · w')²` over the pairs of tokens within each group of four.
    pub(crate) parallel: f64,
    /// `Σ φ φ' |w|² |w'|²` over the same pairs.
    pub(crate) all: f64,
}

/// Number of tokens that are summed in f32 before their sums are added to sums in f64.
const FOLD: usize = 512;

/// Computes the squares of the tokens' terms, and the sums for the effective rank. `scale` is a
/// factor of `e` in the squares, but not in the sums.
///
/// Squares of `w` are differences of larger numbers, and are raised to 0 if they are negative.
///
/// # Panics
/// If the columns differ in length.
pub(crate) fn squares(
    level: Level,
    terms: &TokenTerms<'_>,
    scale: f64,
) -> (TokenSquares, TermSums) {
    let (count, FourProducts { neighbours, opposites }) = (terms.e.len(), terms.fours);
    let columns = [terms.norms, terms.dot_out, terms.factors];
    assert!(columns.iter().all(|column| column.len() == count), "columns");
    let whole = count / 4 * 4;
    assert!([neighbours, opposites].iter().all(|products| products.len() == whole), "fours");
    let mut out = TokenSquares::unset(count);
    // SAFETY: all columns have one length, and there are products for each whole four.
    let sums = unsafe { level.run(SquaresKernel { terms, scale, out: &mut out }) };
    (out, sums)
}

struct SquaresKernel<'a, 't> {
    terms: &'a TokenTerms<'t>,
    scale: f64,
    out: &'a mut TokenSquares,
}

impl SimdKernel for SquaresKernel<'_, '_> {
    type Output = TermSums;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> TermSums {
        let Self { terms, scale, out } = self;
        let count = terms.e.len();
        let mut totals = [0.0; 4];
        for part in (0..count).step_by(FOLD) {
            let mut sums = [S::splat(0.0); 4];
            for first in (part..count.min(part + FOLD)).step_by(LANES) {
                let squares = add_terms::<S>(terms, first, &mut sums);
                store_squares::<S>(squares, scale, terms.unit, first, out);
            }
            for (total, sum) in totals.iter_mut().zip(sums) {
                let mut lanes = [0.0; LANES];
                S::store(lanes.as_mut_ptr(), sum);
                *total += f64::from(lanes.iter().sum::<f32>());
            }
        }
        let [trace, squared, parallel, all] = totals;
        TermSums { trace, squared, parallel, all }
    }
}

/// Adds at most sixteen tokens from `first` on to the sums. Returns their `|w|²`, `|e v|²` and
/// `e²`.
#[inline(always)]
unsafe fn add_terms<S: Simd>(
    terms: &TokenTerms<'_>,
    first: usize,
    sums: &mut [S::F; 4],
) -> [S::F; 3] {
    let unit = S::splat(terms.unit);
    let unit_squared = S::splat(terms.unit * terms.unit);
    let out_norm = S::splat(terms.out_norm * terms.unit);
    let out_squared = S::mul(out_norm, out_norm);
    let [e, norms] = [terms.e, terms.norms].map(|column| load::<S>(column, first));
    let (e_squared, norms) = (S::mul(e, e), S::mul(norms, unit));
    let dot_out = S::mul(load::<S>(terms.dot_out, first), unit_squared);
    let norms_squared = S::mul(norms, norms);
    let distance = S::sub(S::add(norms_squared, out_squared), S::add(dot_out, dot_out));
    // A NaN is the second operand, which `max` returns.
    let w = S::max(S::splat(0.0), S::mul(e_squared, distance));
    let factors = load::<S>(terms.factors, first);
    let term = S::mul(factors, w);
    sums[0] = S::add(sums[0], term);
    sums[1] = S::fma(term, term, sums[1]);

    // Tokens of an incomplete four have no products.
    let fours = terms.fours.neighbours.len();
    let (mut term, mut weight) = (term, S::mul(factors, e_squared));
    if first + LANES > fours {
        let mut mask = [0.0; LANES];
        mask[..fours.saturating_sub(first)].fill(1.0);
        let mask = S::load(mask.as_ptr());
        (term, weight) = (S::mul(term, mask), S::mul(weight, mask));
    }
    // Each pair of neighbours occurs once, and each pair of opposite tokens twice.
    let pairs = [
        (&terms.fours.neighbours, [dot_out, term, weight].map(|x| S::rotate_by_one(x)), 1.0),
        (&terms.fours.opposites, [dot_out, term, weight].map(|x| S::rotate_by_two(x)), 0.5),
    ];
    for (products, [other_dot, other_term, other_weight], share) in pairs {
        let product = S::mul(load::<S>(products, first), unit_squared);
        let product = S::sub(S::add(product, out_squared), S::add(dot_out, other_dot));
        let weights = S::mul(S::splat(share), S::mul(weight, other_weight));
        sums[2] = S::fma(weights, S::mul(product, product), sums[2]);
        sums[3] = S::fma(S::splat(share), S::mul(term, other_term), sums[3]);
    }
    [w, S::mul(e_squared, norms_squared), e_squared]
}

/// Writes the squares of at most sixteen tokens from `first` on.
#[inline(always)]
unsafe fn store_squares<S: Simd>(
    squares: [S::F; 3],
    scale: f64,
    unit: f32,
    first: usize,
    out: &mut TokenSquares,
) {
    let scale_squared = scale * scale;
    let values_squared = scale_squared / f64::from(unit).powi(2);
    let columns = [&mut out.w, &mut out.ev, &mut out.e];
    let factors = [values_squared, values_squared, scale_squared];
    for ((column, squares), factor) in columns.into_iter().zip(squares).zip(factors) {
        let to = &mut column[first..];
        if to.len() >= LANES {
            S::store_wide(to.as_mut_ptr(), squares, factor);
        } else {
            let mut last = [0.0; LANES];
            S::store_wide(last.as_mut_ptr(), squares, factor);
            to.copy_from_slice(&last[..to.len()]);
        }
    }
}
