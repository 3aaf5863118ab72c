//! Squares of the terms of a weighted sample, variances, and products of neighbouring terms for the
//! effective rank, of tokens that were drawn independently of each other.

use vattention_core::sample::{TokenSquares, Variance};

use super::products::{ProductsKernel, TILE};
use super::{FourProducts, LANES, SimdLine, load, reduce};
use crate::cpu::simd::{Level, Simd, SimdElement, SimdKernel};

/// Tokens of a sample, in draw order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleValues<'a, E> {
    /// Values, `[b][stride]`.
    pub(crate) values: &'a [E],
    /// Number of elements of a value, whole chunks.
    pub(crate) stride: usize,
    /// `|v|`, `[b]`.
    pub(crate) norms: &'a [f32],
    /// Products of the values within each whole group of four tokens.
    pub(crate) fours: &'a FourProducts,
    /// Variance factor φ, `[b]`.
    pub(crate) factors: &'a [f32],
    /// Weight `1 − π` of a squared term in the variance of a variance, `[b]`.
    pub(crate) weights: &'a [f32],
    /// Factor of values and outputs in the sums, so that fourth powers stay in range.
    pub(crate) unit: f32,
}

/// Terms of a sample for one query head.
#[derive(Debug)]
pub(crate) struct HeadTerms<'a> {
    /// `e`, at most about 1, `[b rounded up to whole vectors]`; 0 past the end.
    pub(crate) e: &'a [f32],
    /// `|out|`
    pub(crate) out_norm: f32,
    /// Factor of `e` in squares and variances, but not in the sums.
    pub(crate) scale: f64,
    /// Squares of the terms, which are to be computed.
    pub(crate) squares: TokenSquares,
    /// Sums over the terms, which are to be computed.
    pub(crate) sums: TermSums,
}

/// Sums over the tokens of a sample, of terms `w = e (v − out)` and `e v` times
/// [`SampleValues::unit`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TermSums {
    /// Variances of the totals of `w`, `e v` and `e`.
    variances: [Variance; 3],
    /// `Σ (φ |w|²)²`
    pub(crate) squared: f64,
    /// `Σ φ φ' (w · w')²` over the pairs of tokens within each group of four.
    pub(crate) parallel: f64,
    /// `Σ φ φ' |w|² |w'|²` over the same pairs.
    pub(crate) all: f64,
    /// Largest `e² (|v|² + |out|²)`.
    pub(crate) largest: f32,
}

/// Number of sums over the tokens.
const SUMS: usize = 10;

/// Number of tokens that are summed in f32 before their sums are added to sums in f64.
const FOLD: usize = 512;

/// Computes the squares of the tokens' terms, and the sums for the effective rank, for each query
/// head. `outs` are the heads' outputs, in the lanes' order, `[heads][stride]`.
///
/// Squares of `w` are differences of larger numbers, and are raised to 0 if they are negative.
///
/// # Panics
/// If the lengths do not match.
pub(crate) fn square_terms<E: SimdElement>(
    level: Level,
    sample: &SampleValues<'_, E>,
    outs: &[SimdLine],
    heads: &mut [HeadTerms<'_>],
) {
    let SampleValues { values, stride, norms, fours, factors, weights, .. } = *sample;
    let b = norms.len();
    assert!(
        values.len() == b * stride && [factors, weights].iter().all(|x| x.len() == b),
        "columns"
    );
    let FourProducts { neighbours, opposites } = fours;
    assert!([neighbours, opposites].iter().all(|products| products.len() == b / 4 * 4), "fours");
    assert_eq!(outs.len() * LANES, heads.len() * stride, "outputs");
    for head in &*heads {
        let TokenSquares { w, ev, e } = &head.squares;
        assert!([w, ev, e].iter().all(|squares| squares.len() == b), "squares");
        assert_eq!(head.e.len(), b.next_multiple_of(LANES), "e");
    }
    // SAFETY: the sizes of everything that the kernel reads and writes are checked above.
    unsafe { level.run(SquaresKernel { sample, outs, heads }) }
}

struct SquaresKernel<'a, 's, 'e, E> {
    sample: &'a SampleValues<'s, E>,
    outs: &'a [SimdLine],
    heads: &'a mut [HeadTerms<'e>],
}

impl<E: SimdElement> SimdKernel for SquaresKernel<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { sample, outs, heads } = self;
        let outs = outs.chunks(TILE * sample.stride / LANES);
        for (heads, outs) in heads.chunks_mut(TILE).zip(outs) {
            match heads.len() {
                1 => add_heads::<S, E, 1>(sample, outs, heads),
                2 => add_heads::<S, E, 2>(sample, outs, heads),
                3 => add_heads::<S, E, 3>(sample, outs, heads),
                _ => add_heads::<S, E, TILE>(sample, outs, heads),
            }
        }
    }
}

/// Computes the terms of `N` heads.
#[inline(always)]
unsafe fn add_heads<S: Simd, E: SimdElement, const N: usize>(
    sample: &SampleValues<'_, E>,
    vectors: &[SimdLine],
    heads: &mut [HeadTerms<'_>],
) {
    let SampleValues { values, stride, norms, .. } = *sample;
    for part in (0..norms.len()).step_by(FOLD) {
        let mut sums = [[S::splat(0.0); SUMS]; N];
        for first in (part..norms.len().min(part + FOLD)).step_by(LANES) {
            let count = LANES.min(norms.len() - first);
            let mut dot_outs = [0.0; LANES * TILE];
            let (values, out) = (&values[first * stride..][..count * stride], &mut dot_outs);
            let out = &mut out[..count * N];
            ProductsKernel { values, stride, vectors, out }.multiply::<S, N>();
            let tokens = TokenVectors::<S>::new(sample, first);
            for (head, sums) in sums.iter_mut().enumerate() {
                let terms = &mut heads[head];
                let dot_out = load::<S>(&dot_outs[head * count..][..count], 0, 0.0);
                let squares = tokens.add(terms, first, dot_out, sums);
                store_squares::<S>(squares, terms, sample.unit, first);
            }
        }
        for (head, sums) in heads.iter_mut().zip(&sums) {
            let mut lanes = [[0.0; LANES]; SUMS];
            for (lanes, sum) in lanes.iter_mut().zip(sums) {
                S::store(lanes.as_mut_ptr(), *sum);
            }
            head.sums.add(&lanes);
        }
    }
}

impl TermSums {
    /// Adds the lanes of partial sums.
    #[inline(always)]
    fn add(&mut self, lanes: &[[f32; LANES]; SUMS]) {
        let [w, w_fourths, ev, ev_fourths, e, e_fourths, squared, parallel, all, largest] = lanes;
        let sum = |lanes| f64::from(reduce(lanes, |a, b| a + b));
        let variances = [(w, w_fourths), (ev, ev_fourths), (e, e_fourths)];
        for (variance, (terms, fourths)) in self.variances.iter_mut().zip(variances) {
            variance.sum += sum(terms);
            variance.fourths += sum(fourths);
        }
        self.squared += sum(squared);
        self.parallel += sum(parallel);
        self.all += sum(all);
        self.largest = reduce(largest, f32::max).max(self.largest);
    }

    /// `Σ φ |w|²`
    pub(crate) fn trace(&self) -> f64 {
        self.variances[0].sum
    }
}

impl HeadTerms<'_> {
    /// Factors of the squares of `w`, `e v` and `e` that remove the `unit` and add the scale.
    fn square_factors(&self, unit: f32) -> [f64; 3] {
        let scale_squared = self.scale * self.scale;
        let values_squared = scale_squared / f64::from(unit).powi(2);
        [values_squared, values_squared, scale_squared]
    }

    /// Variances of the totals of `w`, `e v` and `e`.
    pub(crate) fn variances(&self, unit: f32) -> [Variance; 3] {
        let factors = self.square_factors(unit);
        std::array::from_fn(|i| {
            let (Variance { sum, fourths }, factor) = (self.sums.variances[i], factors[i]);
            Variance { sum: factor * sum, fourths: factor * factor * fourths }
        })
    }
}

/// Numbers of sixteen tokens that are the same for all heads, in units of the values.
struct TokenVectors<S: Simd> {
    unit_squared: S::F,
    norms_squared: S::F,
    factors: S::F,
    weights: S::F,
    /// 1 for tokens of a whole four, whose products are known, and 0 for others.
    in_fours: S::F,
    neighbours: S::F,
    opposites: S::F,
}

impl<S: Simd> TokenVectors<S> {
    /// Loads the tokens from `first` on; past the end all numbers are 0.
    #[inline(always)]
    unsafe fn new<E>(sample: &SampleValues<'_, E>, first: usize) -> Self {
        let FourProducts { neighbours, opposites } = sample.fours;
        let unit_squared = S::splat(sample.unit * sample.unit);
        let norms = S::mul(load::<S>(sample.norms, first, 0.0), S::splat(sample.unit));
        let fours = neighbours.len().saturating_sub(first);
        let mut in_fours = S::splat(1.0);
        if fours < LANES {
            let mut mask = [0.0; LANES];
            mask[..fours].fill(1.0);
            in_fours = S::load(mask.as_ptr());
        }
        Self {
            unit_squared,
            norms_squared: S::mul(norms, norms),
            factors: load::<S>(sample.factors, first, 0.0),
            weights: load::<S>(sample.weights, first, 0.0),
            in_fours,
            neighbours: S::mul(load::<S>(neighbours, first, 0.0), unit_squared),
            opposites: S::mul(load::<S>(opposites, first, 0.0), unit_squared),
        }
    }

    /// Adds the tokens' terms for one head to its sums. Returns their `|w|²`, `|e v|²` and `e²`.
    #[inline(always)]
    unsafe fn add(
        &self,
        head: &HeadTerms<'_>,
        first: usize,
        dot_out: S::F,
        sums: &mut [S::F; SUMS],
    ) -> [S::F; 3] {
        let Self { unit_squared, norms_squared, factors, weights, in_fours, .. } = *self;
        let out_norm = S::splat(head.out_norm);
        let out_squared = S::mul(S::mul(out_norm, out_norm), unit_squared);
        let dot_out = S::mul(dot_out, unit_squared);
        let e = S::load(head.e.as_ptr().add(first));
        let e_squared = S::mul(e, e);
        let both = S::add(norms_squared, out_squared);
        let distance = S::sub(both, S::add(dot_out, dot_out));
        // A NaN is the second operand, which `max` returns.
        let w = S::max(S::splat(0.0), S::mul(e_squared, distance));
        let squares = [w, S::mul(e_squared, norms_squared), e_squared];
        let terms = squares.map(|square| S::mul(factors, square));
        for (i, &term) in terms.iter().enumerate() {
            sums[2 * i] = S::add(sums[2 * i], term);
            sums[2 * i + 1] = S::fma(S::mul(term, term), weights, sums[2 * i + 1]);
        }
        let [term, _, e_term] = terms;
        sums[6] = S::fma(term, term, sums[6]);
        sums[9] = S::max(sums[9], S::mul(e_squared, both));

        let (term, weight) = (S::mul(term, in_fours), S::mul(e_term, in_fours));
        let next = [S::rotate_by_one(dot_out), S::rotate_by_one(term), S::rotate_by_one(weight)];
        let opposite =
            [S::rotate_by_two(dot_out), S::rotate_by_two(term), S::rotate_by_two(weight)];
        // Each pair of neighbours occurs once, and each pair of opposite tokens twice.
        let pairs = [(self.neighbours, next, 1.0), (self.opposites, opposite, 0.5)];
        for (products, [other_dot, other_term, other_weight], share) in pairs {
            let product = S::sub(S::add(products, out_squared), S::add(dot_out, other_dot));
            let weights = S::mul(S::splat(share), S::mul(weight, other_weight));
            sums[7] = S::fma(weights, S::mul(product, product), sums[7]);
            sums[8] = S::fma(S::splat(share), S::mul(term, other_term), sums[8]);
        }
        squares
    }
}

/// Writes the squares of at most sixteen tokens from `first` on.
#[inline(always)]
unsafe fn store_squares<S: Simd>(
    squares: [S::F; 3],
    head: &mut HeadTerms<'_>,
    unit: f32,
    first: usize,
) {
    let factors = head.square_factors(unit);
    let TokenSquares { w, ev, e } = &mut head.squares;
    for ((column, squares), factor) in [w, ev, e].into_iter().zip(squares).zip(factors) {
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
