//! What foretells the logits of tokens, and how far they may be off.

use half::bf16;
use vattention_core::{NewTokens, Picks, Row};
use vattention_selectors::RotatedCodes;

use super::LogitIndex;
use super::keys::{self, Keys};
use super::learned::{learn, pilot};
use super::scratch::Scratch;

/// What codes add to a logit is multiplied by this: of estimates that err, the largest exaggerate.
const SHRINK: f32 = 0.9;

/// How many deviations a logit may be above what a pilot foretells. Of scores that err normally, one token in
/// 740 is further above.
const DEVIATIONS: f64 = 3.0;

/// The index of one KV head.
#[derive(Clone, Debug)]
pub(super) struct Index {
    logits: Logits,
    /// At least the norm of each value, and hardly more, `[tokens]`.
    norms: Vec<bf16>,
}

#[derive(Clone, Debug)]
enum Logits {
    Codes(RotatedCodes),
    Keys(Keys),
    /// The selectors' scores are taken.
    Selectors,
}

/// What is known of one row, `[visible]` each.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Approximate logits.
    pub(super) scores: Scratch,
    /// At least the norms of the values.
    pub(super) norms: &'a [bf16],
    errors: Errors<'a>,
}

/// How far logits may be above scores.
#[derive(Debug)]
enum Errors<'a> {
    /// At the most.
    Proved(keys::Errors<'a>),
    /// As is to be expected.
    Expected(f64),
}

impl Index {
    /// Of no tokens.
    pub(super) fn new(head_dim: usize, index: LogitIndex) -> Self {
        let logits = match index {
            LogitIndex::Codes => Logits::Codes(RotatedCodes::new(head_dim)),
            LogitIndex::Keys => Logits::Keys(Keys::new(head_dim)),
            LogitIndex::Selectors => Logits::Selectors,
        };
        Self { logits, norms: Vec::new() }
    }

    pub(super) fn append(&mut self, new: &NewTokens<'_>) {
        match &mut self.logits {
            Logits::Codes(codes) => codes.append(&new.keys),
            Logits::Keys(keys) => keys.append(&new.keys),
            Logits::Selectors => {}
        }
        let mut value = vec![0.0; new.values.dim()];
        for token in 0..new.values.len() {
            new.values.copy_row(token, &mut value);
            self.norms.push(at_least(norm(value.iter().copied().map(f64::from))));
        }
    }

    /// Tokens that are read for certain, to learn what scores say.
    pub(super) fn pilot(&self, picks: &Picks) -> Vec<usize> {
        if let Logits::Selectors = self.logits { pilot(picks) } else { Vec::new() }
    }

    /// Foretells the logits of the tokens that rows of one step may see. One pass over what is kept, for each
    /// row; for four together, of codes.
    pub(super) fn scans<'a>(
        &'a self,
        rows: &[Row<'a>],
        picks: &Picks,
        pilot: &[usize],
    ) -> Vec<Scan<'a>> {
        let mut scores: Vec<Scratch> = rows.iter().map(|row| Scratch::new(row.visible())).collect();
        let errors: Vec<Errors<'a>> = match &self.logits {
            Logits::Codes(codes) => {
                let mut out: Vec<&mut [f32]> = scores.iter_mut().map(|out| &mut **out).collect();
                codes.logits(rows, SHRINK, &mut out);
                let raised = |row| codes.deviation(row).powi(2) / 2.0;
                rows.iter().map(|row| Errors::Expected(raised(row))).collect()
            }
            Logits::Keys(keys) => {
                rows.iter().zip(&mut scores).for_each(|(row, out)| keys.score(row, out));
                rows.iter().map(|row| Errors::Proved(keys.errors(row))).collect()
            }
            Logits::Selectors => {
                let learn = |(row, out): (_, &mut Scratch)| {
                    Errors::Expected(DEVIATIONS * learn(row, picks, pilot, out))
                };
                rows.iter().zip(&mut scores).map(learn).collect()
            }
        };
        let scan = |(row, (scores, errors)): (&Row<'_>, _)| Scan {
            scores,
            norms: &self.norms[..row.visible()],
            errors,
        };
        rows.iter().zip(scores.into_iter().zip(errors)).map(scan).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        let logits = match &self.logits {
            Logits::Codes(codes) => codes.bytes(),
            Logits::Keys(keys) => keys.bytes(),
            Logits::Selectors => 0,
        };
        logits + size_of_val(&self.norms[..])
    }
}

impl Scan<'_> {
    /// How far the logit of a token may be above its score.
    pub(super) fn error(&self, token: usize) -> f64 {
        match &self.errors {
            Errors::Proved(errors) => errors.of(token),
            Errors::Expected(error) => *error,
        }
    }

    /// The most that [`error`](Self::error) says of any of the tokens; of what is not proved, of all.
    pub(super) fn largest_error(&self, tokens: impl Iterator<Item = usize>) -> f64 {
        match &self.errors {
            Errors::Proved(errors) => tokens.map(|token| errors.of(token)).fold(0.0, f64::max),
            Errors::Expected(error) => *error,
        }
    }

    /// Whether that is proved.
    pub(super) fn is_proved(&self) -> bool {
        matches!(self.errors, Errors::Proved(_))
    }
}

/// The least of the numbers that are kept that is no smaller.
fn at_least(x: f64) -> bf16 {
    let near = bf16::from_f64(x);
    if near.to_f64() >= x { near } else { bf16::from_bits(near.to_bits() + 1) }
}

pub(super) fn norm(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.map(|x| x * x).sum::<f64>().sqrt()
}
