//! Squares of the terms of a weighted sample, variances, and products of neighbouring terms for the
//! effective rank, of tokens that were drawn independently of each other.

use vattention_core::sample::{TokenSquares, Variance};
use vattention_core::step::Scratch;

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

/// Sums over the tokens of each lane, as in [`TermSums`]. Fields instead of an array, which the
/// compiler would not keep in registers.
struct LaneSums<S: Simd> {
    w: LaneVariance<S>,
    ev: LaneVariance<S>,
    e: LaneVariance<S>,
    squared: S::F,
    parallel: S::F,
    all: S::F,
    largest: S::F,
}

/// Sums of a [`Variance`].
#[derive(Clone, Copy)]
struct LaneVariance<S: Simd> {
    sum: S::F,
    fourths: S::F,
}

impl<S: Simd> LaneVariance<S> {
    /// Adds the terms of a variance.
    #[inline(always)]
    unsafe fn add(&mut self, terms: S::F, weights: S::F) {
        self.sum = S::add(self.sum, terms);
        self.fourths = S::fma(S::mul(terms, terms), weights, self.fourths);
    }
}

impl<S: Simd> LaneSums<S> {
    #[inline(always)]
    unsafe fn zeros() -> Self {
        let zero = S::splat(0.0);
        let none = LaneVariance { sum: zero, fourths: zero };
        let (squared, parallel, all, largest) = (zero, zero, zero, zero);
        Self { w: none, ev: none, e: none, squared, parallel, all, largest }
    }
}

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
    let b = norms.len();
    let mut dot_outs = Scratch::new(N * b);
    ProductsKernel { values, stride, vectors, out: &mut dot_outs }.multiply::<S, N>();
    for (head, terms) in heads.iter_mut().enumerate() {
        let dot_outs = &dot_outs[head * b..][..b];
        let factors = terms.square_factors(sample.unit);
        for part in (0..b).step_by(FOLD) {
            // Sums of one head stay in registers.
            let mut sums = LaneSums::<S>::zeros();
            for first in (part..b.min(part + FOLD)).step_by(LANES) {
                let tokens = TokenVectors::<S>::new(sample, first);
                let dot_out = load::<S>(dot_outs, first, 0.0);
                let squares = tokens.add(terms, first, dot_out, &mut sums);
                store_squares::<S>(squares, factors, &mut terms.squares, first);
            }
            terms.sums.add::<S>(&sums);
        }
    }
}

impl TermSums {
    /// Adds the sums of all lanes.
    #[inline(always)]
    unsafe fn add<S: Simd>(&mut self, lanes: &LaneSums<S>) {
        let LaneSums { w, ev, e, squared, parallel, all, largest } = *lanes;
        let variances = [w.sum, w.fourths, ev.sum, ev.fourths, e.sum, e.fourths];
        let mut registers = [S::no_sums(); LANES];
        let sums = variances.into_iter().chain([squared, parallel, all]);
        for (register, sum) in registers.iter_mut().zip(sums) {
            *register = S::fold(sum, S::splat(1.0), S::no_sums());
        }
        let mut sums = [0.0; LANES];
        S::store(sums.as_mut_ptr(), S::sums(&registers));
        let [w, w_fourths, ev, ev_fourths, e, e_fourths, squared, parallel, all, ..] =
            sums.map(f64::from);
        let variances = [(w, w_fourths), (ev, ev_fourths), (e, e_fourths)];
        for (variance, (sum, fourths)) in self.variances.iter_mut().zip(variances) {
            variance.sum += sum;
            variance.fourths += fourths;
        }
        self.squared += squared;
        self.parallel += parallel;
        self.all += all;
        S::store(sums.as_mut_ptr(), largest);
        self.largest = reduce(&sums, f32::max).max(self.largest);
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
        sums: &mut LaneSums<S>,
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
        let ev = S::mul(e_squared, norms_squared);
        let (term, e_term) = (S::mul(factors, w), S::mul(factors, e_squared));
        sums.w.add(term, weights);
        sums.ev.add(S::mul(factors, ev), weights);
        sums.e.add(e_term, weights);
        sums.squared = S::fma(term, term, sums.squared);
        sums.largest = S::max(sums.largest, S::mul(e_squared, both));

        let pairs = PairTerms::<S> {
            dot_out,
            out_squared,
            term: S::mul(term, in_fours),
            weight: S::mul(e_term, in_fours),
        };
        // Each pair of neighbours occurs once, and each pair of opposite tokens twice.
        pairs.add(pairs.rotated(|x| S::rotate_by_one(x)), self.neighbours, 1.0, sums);
        pairs.add(pairs.rotated(|x| S::rotate_by_two(x)), self.opposites, 0.5, sums);
        [w, ev, e_squared]
    }
}

/// Numbers of sixteen tokens from which the products of pairs are computed.
#[derive(Clone, Copy)]
struct PairTerms<S: Simd> {
    dot_out: S::F,
    out_squared: S::F,
    /// `φ |w|²`
    term: S::F,
    /// `φ e²`
    weight: S::F,
}

impl<S: Simd> PairTerms<S> {
    /// Terms of other tokens of the same group of four.
    #[inline(always)]
    unsafe fn rotated(self, rotate: impl Fn(S::F) -> S::F) -> Self {
        let Self { dot_out, term, weight, .. } = self;
        Self { dot_out: rotate(dot_out), term: rotate(term), weight: rotate(weight), ..self }
    }

    /// Adds `share` times the terms of pairs of tokens, from the `products` of their values.
    #[inline(always)]
    unsafe fn add(self, other: Self, products: S::F, share: f32, sums: &mut LaneSums<S>) {
        let both = S::add(self.dot_out, other.dot_out);
        let product = S::sub(S::add(products, self.out_squared), both);
        let weights = S::mul(S::splat(share), S::mul(self.weight, other.weight));
        sums.parallel = S::fma(weights, S::mul(product, product), sums.parallel);
        sums.all = S::fma(S::splat(share), S::mul(self.term, other.term), sums.all);
    }
}

/// Writes the squares of at most sixteen tokens, times `factors`, to the columns from `first` on.
#[inline(always)]
unsafe fn store_squares<S: Simd>(
    squares: [S::F; 3],
    factors: [f64; 3],
    columns: &mut TokenSquares,
    first: usize,
) {
    let TokenSquares { w, ev, e } = columns;
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
