//! The index that predicts logits of tokens, and its errors.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{NewTokens, Picks, Row, Site};
use vattention_index::RotatedCodes;

use super::LogitIndex;
use super::errors::{LogitErrors, Scan};
use super::keys::{Keys, norm};
use super::learned::{learn, pilot};
use super::scratch::Scratch;

/// Shrinkage of the code's term of a logit: the largest of noisy estimates overshoot. It is
/// `1 / (1 + 0.37²)`, the share of the signal in the variance of estimates of residuals that lie in
/// all directions alike.
const SHRINK: f32 = 0.88;

/// Standard deviations that a logit may be above its prediction by a pilot. If scores err normally, one
/// token in 740 is further above.
const DEVIATIONS: f64 = 3.0;

/// The index of one KV head.
#[derive(Clone, Debug)]
pub(super) struct Index {
    logits: LogitSource,
    /// At least the norm of each value, and hardly more, `[tokens]`.
    norms: Vec<bf16>,
}

#[derive(Clone, Debug)]
enum LogitSource {
    Codes(RotatedCodes),
    Keys(Keys),
    /// The selectors' scores are taken.
    Selectors,
}

impl Index {
    /// An index of no tokens.
    pub(super) fn new(site: &Site, index: LogitIndex) -> Self {
        let logits = match index {
            LogitIndex::Codes => LogitSource::Codes(RotatedCodes::new(site)),
            LogitIndex::Keys => LogitSource::Keys(Keys::new(site.shape.head_dim)),
            LogitIndex::Selectors => LogitSource::Selectors,
        };
        Self { logits, norms: Vec::new() }
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
            self.norms.push(at_least(norm(value.iter().copied().map(f64::from))));
        }
    }

    /// Tokens that are always read, to calibrate the selectors' scores.
    pub(super) fn pilot(&self, picks: &Picks) -> Vec<usize> {
        if let LogitSource::Selectors = self.logits { pilot(picks) } else { Vec::new() }
    }

    /// Predicts the logits of the tokens that rows of one step see. One pass over the index for each
    /// row; for four rows together, of codes.
    pub(super) fn scans<'a>(
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
            let errors = match &self.logits {
                LogitSource::Codes(codes) => LogitErrors::Deviations(codes.deviations(row)),
                LogitSource::Keys(keys) => {
                    keys.score(row, &mut scores);
                    LogitErrors::Proved(keys.errors(row))
                }
                LogitSource::Selectors => {
                    LogitErrors::Common(DEVIATIONS * learn(row, picks, pilot, &mut scores))
                }
            };
            let (largest, norms) = (largest(&scores), &self.norms[..row.visible()]);
            scans.push(Scan { scores, largest, norms, errors });
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

/// Numbers that are compared side by side.
const LANES: usize = 64;

/// The largest number; infinite or not a number if any number is.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn largest(numbers: &[f32]) -> f32 {
    let (mut most, mut zeros) = ([f32::NEG_INFINITY; LANES], [0.0_f32; LANES]);
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for numbers in whole {
        for lane in 0..LANES {
            let x = numbers[lane];
            most[lane] = if x > most[lane] { x } else { most[lane] };
            // Not a number, unless `x` is finite.
            zeros[lane] += 0.0 * x;
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        most[lane] = if x > most[lane] { x } else { most[lane] };
        zeros[lane] += 0.0 * x;
    }
    most.into_iter().fold(f32::NEG_INFINITY, f32::max) + zeros.iter().sum::<f32>()
}

/// The least of the numbers that are kept that is no smaller.
fn at_least(x: f64) -> bf16 {
    let near = bf16::from_f64(x);
    if near.to_f64() >= x { near } else { bf16::from_bits(near.to_bits() + 1) }
}
