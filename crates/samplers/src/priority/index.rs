//! The index that predicts the logits of tokens and the errors of its predictions.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{
    NewTokens, Picks, Row, Site, Tokens,
    step::{PrefixMax, Scratch},
};
use vattention_index::RotatedCodes;

use super::LogitIndex;
use super::errors::{LogitErrors, Scan};
use super::keys::{RoundedKeys, norm};
use super::pilot::{choose_pilot, predict};

/// Shrinkage of the code's term of a logit: the largest of noisy estimates overshoot. It equals
/// `1 / (1 + 0.37²)`, the signal's share of the variance of the estimates, for residuals that are
/// uniformly distributed over directions.
const SHRINK: f32 = 0.88;

/// Assumed upper bound, in standard deviations, on the amount by which a logit exceeds its
/// prediction from a pilot. If errors are normal, one logit in 740 exceeds the bound.
const DEVIATIONS: f64 = 3.0;

/// Index of the tokens of one KV head, which predicts their logits.
#[derive(Clone, Debug)]
pub(super) struct LogitPredictor {
    logits: LogitSource,
    /// Norm of each value, rounded up, `[tokens]`.
    norms: Vec<bf16>,
    /// Largest norm of each prefix of the tokens.
    longest: PrefixMax,
}

#[derive(Clone, Debug)]
enum LogitSource {
    Codes(RotatedCodes),
    Keys(RoundedKeys),
    /// Scores of the selectors: nothing is stored here.
    Selectors,
}

impl LogitPredictor {
    /// Creates an index without tokens.
    pub(super) fn new(site: &Site, index: LogitIndex) -> Self {
        let logits = match index {
            LogitIndex::Codes => LogitSource::Codes(RotatedCodes::new(site)),
            LogitIndex::Keys => LogitSource::Keys(RoundedKeys::new(site.shape.head_dim)),
            LogitIndex::Selectors => LogitSource::Selectors,
        };
        Self { logits, norms: Vec::new(), longest: PrefixMax::default() }
    }

    pub(super) fn append(&mut self, new: &NewTokens<'_>) {
        match &mut self.logits {
            LogitSource::Codes(codes) => codes.append(&new.keys),
            LogitSource::Keys(keys) => keys.append(&new.keys),
            LogitSource::Selectors => {}
        }
        let mut value = vec![0.0; new.values.dim()];
        for token in 0..new.values.len() {
            new.values.copy_row(token, &mut value);
            let norm = round_up(norm(value.iter().copied().map(f64::from)));
            self.norms.push(norm);
            self.longest.push(norm.to_f64());
        }
    }

    /// Removes all but the first tokens, whose keys are `keys`.
    pub(super) fn truncate(&mut self, keys: &Tokens<'_>) {
        match &mut self.logits {
            LogitSource::Codes(codes) => codes.truncate(keys),
            LogitSource::Keys(rounded) => rounded.truncate(keys.len()),
            LogitSource::Selectors => {}
        }
        self.norms.truncate(keys.len());
        self.longest.truncate(keys.len());
    }

    /// Moves codes or copies of the keys to memory that later clones share. Clones copy the norms,
    /// which are 2 bytes per token.
    pub(super) fn share(&mut self) {
        match &mut self.logits {
            LogitSource::Codes(codes) => codes.share(),
            LogitSource::Keys(keys) => keys.share(),
            LogitSource::Selectors => {}
        }
    }

    /// Tokens that are always read to calibrate the selectors' scores; empty for other sources.
    pub(super) fn choose_pilot(&self, picks: &Picks) -> Vec<usize> {
        if let LogitSource::Selectors = self.logits { choose_pilot(picks) } else { Vec::new() }
    }

    /// Predicts the logits of the tokens that are visible to rows of one step. One pass over the
    /// index for each row; one pass over codes serves four rows.
    pub(super) fn scan<'a>(
        &'a self,
        rows: &[Row<'a>],
        picks: &Picks,
        pilot: &[usize],
    ) -> Vec<Scan<'a>> {
        let mut scores: Vec<Scratch<f32>> =
            rows.iter().map(|row| Scratch::new(row.visible())).collect();
        if let LogitSource::Codes(codes) = &self.logits {
            let mut out: Vec<&mut [f32]> = scores.iter_mut().map(|out| &mut **out).collect();
            codes.logits(rows, picks, SHRINK, &mut out);
        }
        let mut scans = Vec::with_capacity(rows.len());
        for (row, mut scores) in rows.iter().zip(scores) {
            let mut errors = match &self.logits {
                LogitSource::Codes(codes) => LogitErrors::Deviations(codes.deviations(row)),
                LogitSource::Keys(keys) => {
                    keys.score(row, &mut scores);
                    LogitErrors::Proved(keys.errors(row))
                }
                LogitSource::Selectors => {
                    LogitErrors::Common(DEVIATIONS * predict(row, picks, pilot, &mut scores))
                }
            };
            let mut largest = find_largest(&scores);
            // A cap would hide scores that are not finite.
            if row.form().soft_cap.is_some() && largest.is_finite() {
                errors = errors.cap(&mut scores, row.form());
                largest = find_largest(&scores);
            }
            let norms = &self.norms[..row.visible()];
            let longest = bf16::from_f64(self.longest.max_of_first(row.visible()));
            scans.push(Scan { scores, largest, norms, longest, errors });
        }
        scans
    }

    pub(super) fn bytes(&self) -> usize {
        let logits = match &self.logits {
            LogitSource::Codes(codes) => codes.bytes(),
            LogitSource::Keys(keys) => keys.bytes(),
            LogitSource::Selectors => 0,
        };
        logits + size_of_val(&self.norms[..])
    }
}

/// Number of elements that are compared together.
const LANES: usize = 64;

/// Largest number; infinite or NaN if any number is.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn find_largest(numbers: &[f32]) -> f32 {
    let (mut most, mut zeros) = ([f32::NEG_INFINITY; LANES], [0.0_f32; LANES]);
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for numbers in whole {
        for lane in 0..LANES {
            let x = numbers[lane];
            most[lane] = if x > most[lane] { x } else { most[lane] };
            // NaN unless `x` is finite.
            zeros[lane] += 0.0 * x;
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        most[lane] = if x > most[lane] { x } else { most[lane] };
        zeros[lane] += 0.0 * x;
    }
    most.into_iter().fold(f32::NEG_INFINITY, f32::max) + zeros.iter().sum::<f32>()
}

/// Smallest bf16 that is at least `x`, for `x ≥ 0`.
fn round_up(x: f64) -> bf16 {
    let near = bf16::from_f64(x);
    if near.to_f64() >= x { near } else { bf16::from_bits(near.to_bits() + 1) }
}
