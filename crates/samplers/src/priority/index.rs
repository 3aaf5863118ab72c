//! The index that predicts the logits of tokens and the errors of its predictions.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{
    NewTokens, Picks, Row, Site, Tokens,
    step::{PrefixMax, Scratch},
};
use vattention_index::RotatedCodes;

use super::LogitIndex;
use super::errors::{LogitErrors, Scan, Scores};
use super::keys::{RoundedKeys, norm};
use super::level::STEPS_TO_E;
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

    /// Predicts the logits of the tokens that are visible to rows of one step. Predictions by codes
    /// are computed later, unless the layer caps logits.
    pub(super) fn scan<'a>(&'a self, rows: &[Row<'a>], picks: &Picks, pilot: &[usize]) -> Scan<'a> {
        let visible = rows[0].visible();
        let (norms, longest) = (&self.norms[..visible], self.longest.max_of_first(visible));
        let mut scan = Scan {
            scores: Scores::Stored(Vec::new()),
            is_finite: true,
            errors: Vec::with_capacity(rows.len()),
            norms,
            longest: bf16::from_f64(longest),
            threads: rows[0].threads(),
        };
        let mut scores: Vec<Scratch<f32>> = Vec::new();
        match &self.logits {
            LogitSource::Codes(codes) => {
                let errors = |row| LogitErrors::Deviations(codes.deviations(row));
                scan.errors.extend(rows.iter().map(errors));
                if rows.iter().all(|row| row.form().soft_cap.is_none()) {
                    let steps = codes.scan(rows, picks, SHRINK, STEPS_TO_E);
                    scan.is_finite = steps.is_finite();
                    scan.scores = Scores::Codes(steps);
                    return scan;
                }
                scores.extend(rows.iter().map(|_| Scratch::new(visible)));
                let mut out: Vec<&mut [f32]> = scores.iter_mut().map(|out| &mut **out).collect();
                codes.logits(rows, picks, SHRINK, &mut out);
            }
            LogitSource::Keys(keys) => {
                for row in rows {
                    let mut out = Scratch::new(visible);
                    keys.score(row, &mut out);
                    scores.push(out);
                    scan.errors.push(LogitErrors::Proved(keys.errors(row)));
                }
            }
            LogitSource::Selectors => {
                for row in rows {
                    let mut out = Scratch::new(visible);
                    let deviation = predict(row, picks, pilot, &mut out);
                    scores.push(out);
                    scan.errors.push(LogitErrors::Common(DEVIATIONS * deviation));
                }
            }
        }
        // A cap would hide scores that are not finite.
        scan.is_finite = scores.iter().all(|scores| are_finite(scores));
        if scan.is_finite {
            for ((row, scores), errors) in rows.iter().zip(&mut scores).zip(&mut scan.errors) {
                errors.cap(scores, row.form());
            }
        }
        scan.scores = Scores::Stored(scores);
        scan
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

/// Number of elements that are checked together.
const LANES: usize = 64;

/// Returns true if all numbers are finite.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn are_finite(numbers: &[f32]) -> bool {
    let mut zeros = [0.0_f32; LANES];
    for numbers in numbers.chunks(LANES) {
        for (zero, x) in zeros.iter_mut().zip(numbers) {
            // NaN unless `x` is finite.
            *zero += 0.0 * x;
        }
    }
    zeros.iter().sum::<f32>() == 0.0
}

/// Smallest bf16 that is at least `x`, for `x ≥ 0`.
fn round_up(x: f64) -> bf16 {
    let near = bf16::from_f64(x);
    if near.to_f64() >= x { near } else { bf16::from_bits(near.to_bits() + 1) }
}
