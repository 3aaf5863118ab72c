//! Sums over the rows of a pass, for the query heads of a tile.

use vattention_core::step::Scratch;

use super::{BLOCK_LINES, CHUNK, LANES, LEAST, SimdLine};
use crate::cpu::simd::Simd;

/// Denominators `Σ 2^(logit − max)` and numerators `Σ 2^(logit − max) v` of a tile's heads, over
/// the rows so far. Maxima and denominators are aligned like lines: a load that crosses a cache
/// line would wait for the last store of the same numbers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TileSums {
    /// Largest logit of head `lane % H`.
    pub(crate) max: [f32; LANES],
    /// Partial sums of head `lane % H`.
    pub(crate) denominator: [f32; LANES],
    /// Numerators of the rows since the last [`fold`](Self::fold), `[H][value_chunks · CHUNK]`, in
    /// the lanes' order.
    pub(super) recent: Scratch<SimdLine>,
    /// Numerators of all earlier rows, in f64: a sum of thousands of similar numbers in f32 would
    /// lose more precision than the products do.
    pub(crate) numerators: Scratch<f64>,
}

impl TileSums {
    /// Creates sums over no rows, for tiles of `heads` query heads.
    pub(crate) fn new(heads: usize, value_chunks: usize) -> Self {
        let lines = heads * value_chunks * (CHUNK / LANES);
        let (mut recent, mut numerators) = (Scratch::new(lines), Scratch::new(lines * LANES));
        recent.fill(SimdLine::default());
        numerators.fill(0.0);
        Self { max: [LEAST; LANES], denominator: [0.0; LANES], recent, numerators }
    }

    /// Adds the numerators of recent rows to the sums in f64.
    #[inline(always)]
    pub(super) unsafe fn fold<S: Simd>(&mut self) {
        let (numerators, _) = self.numerators.as_chunks_mut::<LANES>();
        for (numerators, line) in numerators.iter_mut().zip(&mut *self.recent) {
            S::add_wide(numerators.as_mut_ptr(), S::load(line.0.as_ptr()));
            line.0 = [0.0; LANES];
        }
    }

    /// Makes the sums relative to new maxima. It is called rarely: the maximum of `n` rows in
    /// random order rises about `ln n` times.
    #[inline(always)]
    fn raise_max<const H: usize>(&mut self, best: &[f32; LANES]) {
        let lines = self.recent.len() / H;
        for head in 0..H {
            let lanes_of_head = || (head..LANES).step_by(H);
            let max = lanes_of_head().map(|lane| best[lane]).fold(LEAST, f32::max);
            if max == self.max[head] {
                continue;
            }
            if self.max[head] == LEAST {
                // There are no sums yet.
                lanes_of_head().for_each(|lane| self.max[lane] = max);
                continue;
            }
            let factor = (self.max[head] - max).exp2();
            for lane in lanes_of_head() {
                self.max[lane] = max;
                self.denominator[lane] *= factor;
            }
            for sum in &mut self.numerators[head * lines * LANES..][..lines * LANES] {
                *sum *= f64::from(factor);
            }
            for line in &mut self.recent[head * lines..][..lines] {
                line.0.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }

    /// Computes weights `2^(logit − max)` and adds them to the denominators.
    #[inline(always)]
    pub(super) unsafe fn weigh<S: Simd, const H: usize>(
        &mut self,
        logits: &[SimdLine],
        weights: &mut [SimdLine; BLOCK_LINES],
    ) {
        let mut best = S::load(self.max.as_ptr());
        for line in logits {
            best = S::max(best, S::load(line.0.as_ptr()));
        }
        if S::any_above(best, S::load(self.max.as_ptr())) {
            let mut lanes = [0.0; LANES];
            S::store(lanes.as_mut_ptr(), best);
            self.raise_max::<H>(&lanes);
        }
        let max = S::load(self.max.as_ptr());
        let mut denominator = S::load(self.denominator.as_ptr());
        for (logits, weights) in logits.iter().zip(weights) {
            let terms = S::exp2(S::sub(S::load(logits.0.as_ptr()), max));
            denominator = S::add(denominator, terms);
            S::store(weights.0.as_mut_ptr(), terms);
        }
        S::store(self.denominator.as_mut_ptr(), denominator);
    }
}
