//! How large a sample must be by the central limit theorem.
//!
//! The theorem says nothing of tokens that the sample has not met. Tokens of which `λ` draws are
//! expected together are all missed with probability `e^−λ`. As `e ≤ e^(s^ + Δ)`, and
//! `|v − o| ≤ √2 √(|v|² + m²)` if `|o| ≤ m`, they shift the output by
//!
//! `√2 e^Δ λ/t · Σ e^s^ √(|v|² + m²) / D`
//!
//! at most. That must be within epsilon too for `λ = ln(10/δ)`: so tokens that would shift it further
//! are missed with probability `δ/10`, and the theorem is left `0.9 δ`. The least sample follows: some
//! `2 λ/ε` tokens where values have equal lengths and do not cancel.

use super::design::Design;
use super::look::Look;
use crate::asymptotic::Asymptotic;

/// By how much the threshold grows at least, so that a few looks suffice.
const GROWTH: f64 = 1.0 + 1.0 / 16.0;

/// The part of delta for missing tokens that would shift the output by more than epsilon.
pub(super) const UNSEEN_SHARE: f64 = 0.1;

/// What must hold of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) rule: &'a Asymptotic,
    /// What tokens that are all missed with probability `δ/10` add to `Σ e |v − o|`, times the
    /// threshold.
    pub(super) unseen: f64,
}

impl Terms<'_> {
    /// The least threshold from `t` to `last` that suffices as the sample drawn at `t` sees it, or
    /// a little more than `t`; `None` if there is none.
    pub(super) fn needed(&self, look: &Look, design: &Design, t: f64, last: f64) -> Option<f64> {
        if self.suffice(look, design, t) {
            return Some(t);
        }
        if !self.suffice(look, design, last) {
            return None;
        }
        let (mut low, mut high) = (t, last);
        while high / low > 1.0 + 1e-3 {
            let middle = (low * high).sqrt();
            if self.suffice(look, design, middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high.max(GROWTH * t).min(last))
    }

    fn suffice(&self, look: &Look, design: &Design, t: f64) -> bool {
        let Self { rule, unseen } = self;
        rule.allows(&look.estimate, unseen / t)
            && rule.suffices(&look.estimate, look.variances(design, t, rule.z))
    }
}

/// [`Terms::unseen`] if scores err by `error` at most, and the design's sizes sum to `total`.
pub(super) fn unseen(delta: f64, error: f64, total: f64) -> f64 {
    let draws = -(UNSEEN_SHARE * delta).ln();
    std::f64::consts::SQRT_2 * error.exp() * draws * total
}
