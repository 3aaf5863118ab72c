//! Statistics of a uniform sample for each query head, from one pass over the values.

use std::f64::consts::{LN_2, LOG2_E};

use vattention_core::{
    SampleStats,
    sample::{Deviations, Moments, Residual, drift, max_or_nan, mean_of_lagged_squares, scale_up},
    step::{Scratch, Softmax},
};

use super::kernel::{
    LaggedSquares, SampleTokens, SimdLine, Spread, SpreadCentre, exp2, products, spread, vectors,
};
use super::query_heads::QueryHeads;
use super::sample_rows::{SampleRows, SampledElement};
use super::simd::{CHUNK, SimdElement};

/// Number of tokens whose values stay in the second-level cache while all query heads read them.
const PART: usize = 256;

/// Least value of the largest `e · max(|v|, |out|)` for which f32 can represent products of two
/// such terms, somewhat smaller ones included.
pub(super) const LEAST_SPREAD: f32 = 1e-12;

/// Least ratio of the largest `e · max(|v|, |out|)` to the largest `|v|`, the unit of deviations.
pub(super) const LEAST_SHARE: f32 = 1e-6;

/// Moments of a sample for one query head.
pub(crate) struct ShiftedMoments {
    /// Logit that the exponentials are relative to.
    shift: f64,
    moments: Moments,
}

/// One query head's pass over the sample.
struct SamplePass {
    estimate: Estimate,
    /// `[b]`
    e: Scratch<f32>,
    centre: SpreadCentre,
    spread: Spread,
    lagged: LaggedSquares,
}

/// Estimates from one query head's sums.
struct Estimate {
    shift: f64,
    /// Sums over the deterministic tokens, relative to the shift.
    certain: Softmax,
    /// Sums over the sample, relative to its own largest logit. Relative to the shift, which may be
    /// a larger logit, squares might underflow in f32.
    sample: Softmax,
    /// `e` of the sample's largest logit, relative to the shift.
    scale: f64,
    /// `D^`
    d: f64,
    /// `N^`
    n: Vec<f64>,
    /// Output `N^ / D^`
    out: Vec<f32>,
    /// Distance of the output from that of the deterministic tokens alone.
    drift: f64,
    /// Mean of `w = e (v − out)`.
    mean_w: Vec<f32>,
}

impl ShiftedMoments {
    /// Moments for each query head, from its sums over deterministic tokens and over the sample.
    pub(crate) fn compute_all<E: SampledElement>(
        heads: &QueryHeads<'_, E>,
        certain: &[Softmax],
        sample: &[Softmax],
        stored: &SampleRows<E::Sample>,
        n_s: usize,
    ) -> Vec<Self> {
        let (b, level) = (stored.rows.norms.len(), heads.level);
        let longest = longest(&stored.rows.norms);
        let sums = certain.iter().zip(sample);
        let mut passes: Vec<SamplePass> = sums
            .zip(&stored.rows.logits)
            .map(|((certain, sample), logits)| {
                let estimate = Estimate::new(certain, sample, b, n_s);
                SamplePass::new::<E>(heads, estimate, logits, longest)
            })
            .collect();
        let factors = factors::<E>(heads, &passes);
        let stride = heads.rows.value_chunks() * CHUNK;
        for first in (0..b).step_by(PART) {
            let part = first..b.min(first + PART);
            let values = &stored.values[part.start * stride..part.end * stride];
            let products = products(level, values, stride, &factors);
            let column = |i: usize| &products[i * part.len()..][..part.len()];
            let count = passes.len();
            for (member, pass) in passes.iter_mut().enumerate() {
                let e = &pass.e[part.clone()];
                let norms = &stored.rows.norms[part.clone()];
                let (dot_out, dot_mean) = (column(member), column(count + member));
                pass.spread +=
                    spread(level, &SampleTokens { e, norms, dot_out, dot_mean }, &pass.centre);
                pass.lagged.add(level, e, values);
            }
        }
        let moments = passes.iter().zip(&stored.rows.logits).map(|(pass, logits)| {
            if pass.fits_f32(&stored.rows.norms, longest) {
                pass.sum_up(b)
            } else {
                pass.estimate.compute_in_f64(heads, logits, stored, n_s)
            }
        });
        moments.collect()
    }

    /// Statistics of the sample, which has `b` tokens.
    pub(crate) fn stats(&self, b: usize, residual: &Residual) -> SampleStats {
        let bound = residual.bound.map(|logit| (f64::from(logit) - self.shift).exp());
        let Residual { n_s, visible, query_heads, max_norm_v, .. } = *residual;
        let residual = Residual { n_s, visible, query_heads, max_norm_v, bound };
        SampleStats::from_moments(b, &self.moments, &residual)
    }
}

/// Largest norm, clamped so that its square and inverse are normal f32 numbers.
pub(super) fn longest(norms: &[f32]) -> f32 {
    norms.iter().copied().fold(1e-15, f32::max)
}

/// Vectors to multiply with the sample's values: each query head's output, then each one's
/// `mean_w`.
fn factors<E: SimdElement>(heads: &QueryHeads<'_, E>, passes: &[SamplePass]) -> Scratch<SimdLine> {
    let outs = passes.iter().flat_map(|pass| &pass.estimate.out);
    let means = passes.iter().flat_map(|pass| &pass.estimate.mean_w);
    let factors: Vec<f32> = outs.chain(means).copied().collect();
    vectors::<E::Sample>(&factors, heads.value_dim(), 1.0, 1, heads.rows.value_chunks())
}

impl SamplePass {
    fn new<E: SimdElement>(
        heads: &QueryHeads<'_, E>,
        estimate: Estimate,
        logits: &[f32],
        longest: f32,
    ) -> Self {
        let own_shift = (estimate.sample.shift() * LOG2_E) as f32;
        let e = exp2(heads.level, logits, own_shift);
        let centre = SpreadCentre {
            mean_e: (estimate.sample.denominator() / logits.len() as f64) as f32,
            out_squared: squared(&estimate.out) as f32,
            out_mean: dot(&estimate.out, &estimate.mean_w) as f32,
            mean_squared: squared(&estimate.mean_w) as f32,
            unit: 1.0 / (longest * longest),
        };
        let (dim, chunks) = (heads.value_dim(), heads.rows.value_chunks());
        let lagged = LaggedSquares::new(vectors::<E::Sample>(&estimate.out, dim, 1.0, 1, chunks));
        Self { estimate, e, centre, spread: Spread::default(), lagged }
    }

    /// Returns true if f32 is precise enough: if the largest `e |v − out|` is so large that its
    /// second and fourth powers do not underflow, and is not negligible relative to the longest
    /// value.
    fn fits_f32(&self, norms: &[f32], longest: f32) -> bool {
        let out = squared(&self.estimate.out).sqrt() as f32;
        let most = self.e.iter().zip(norms).map(|(e, norm)| e * norm.max(out)).fold(0.0, f32::max);
        most >= LEAST_SPREAD && most >= LEAST_SHARE * longest
    }

    fn sum_up(&self, b: usize) -> ShiftedMoments {
        let Self { estimate, spread, lagged, .. } = self;
        // Units of squares of e, and of squares of e times a value.
        let e_squared = estimate.scale * estimate.scale;
        let ev_squared = e_squared / f64::from(self.centre.unit);
        let numerator = estimate.sample.numerator();
        let mean_ev_squares = numerator.iter().map(|n| n * n).sum::<f64>() / b as f64;
        let moments = Moments {
            value_dim: estimate.out.len(),
            d: estimate.d,
            d_certain: estimate.certain.denominator(),
            norm_n_squared: estimate.n.iter().map(|n| n * n).sum(),
            drift: estimate.drift,
            e: times(spread.e, e_squared),
            ev_squares: max_or_nan(
                spread.ev_squares * ev_squared - mean_ev_squares * e_squared,
                0.0,
            ),
            w: times(spread.w, ev_squared),
            trace_of_square: mean_of_lagged_squares(b / 2, lagged.sum) * e_squared * e_squared,
        };
        ShiftedMoments { shift: estimate.shift, moments }
    }
}

impl Estimate {
    fn new(certain: &Softmax, sample: &Softmax, b: usize, n_s: usize) -> Self {
        let (mut certain, sample) = (certain.clone(), sample.clone());
        let shift = certain.shift().max(sample.shift());
        certain.rebase(shift);
        let scale = if b == 0 { 0.0 } else { (sample.shift() - shift).exp() };
        let weight = scale_up(b, n_s) * scale;
        let d = certain.denominator() + weight * sample.denominator();
        let both = certain.numerator().iter().zip(sample.numerator());
        let n: Vec<f64> = both.map(|(certain, sample)| certain + weight * sample).collect();
        let out: Vec<f64> = n.iter().map(|n| n / d).collect();
        let mean = |(ev, out): (&f64, &f64)| (ev - out * sample.denominator()) / b as f64;
        let mean_w = sample.numerator().iter().zip(&out).map(mean);
        let mean_w = mean_w.map(|x| x as f32).collect();
        let drift = drift(&out, &certain);
        let out = out.iter().map(|&x| x as f32).collect();
        Self { shift, certain, sample, scale, d, n, out, drift, mean_w }
    }

    /// Computes moments in f64, where f32 is not precise enough. `logits` of the sample are in base
    /// 2, `[b]`.
    fn compute_in_f64<E: SampledElement>(
        &self,
        heads: &QueryHeads<'_, E>,
        logits: &[f32],
        stored: &SampleRows<E::Sample>,
        n_s: usize,
    ) -> ShiftedMoments {
        let e: Vec<f64> =
            logits.iter().map(|&logit| (f64::from(logit) * LN_2 - self.shift).exp()).collect();
        let values = stored.values(heads);
        let moments = Moments::new(&e, &values, &self.certain, n_s);
        ShiftedMoments { shift: self.shift, moments }
    }
}

/// Scales deviations by a factor, given its square.
fn times(deviations: Deviations, square: f64) -> Deviations {
    let Deviations { squares, fourths } = deviations;
    Deviations { squares: squares * square, fourths: fourths * square * square }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn squared(a: &[f32]) -> f64 {
    dot(a, a)
}
