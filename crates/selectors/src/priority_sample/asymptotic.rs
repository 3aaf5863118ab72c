//! How large a sample must be by the central limit theorem.

use std::sync::Arc;

use vattention_core::Fraction;
use vattention_estimators::formula::{RatioGrid, z_one};

use super::design::Design;
use super::look::Look;

/// By how much the threshold grows at least, so that a few looks suffice.
const GROWTH: f64 = 1.0 + 1.0 / 16.0;

/// Terms of a promise that takes the central limit theorem for granted.
#[derive(Clone, Debug)]
pub(super) struct Asymptotic {
    grid: Arc<RatioGrid>,
    epsilon: f64,
    /// The share of `Σ e |v|` that `|N|` is taken for at least.
    floor: f64,
    /// How many of its own standard errors are added to a variance.
    z: f64,
}

impl Asymptotic {
    /// Strict: variances are at least their estimates with confidence 0.9.
    pub(super) fn new(
        grid: Arc<RatioGrid>,
        epsilon: f64,
        floor: Option<Fraction>,
        strict: bool,
    ) -> Self {
        let z = if strict { z_one(0.1) } else { 0.0 };
        Self { grid, epsilon, floor: floor.map_or(0.0, Fraction::get), z }
    }

    /// The least threshold from `t` to `last` that suffices as the sample drawn at `t` sees it, or
    /// a little more than `t`; `None` if there is none.
    pub(super) fn needed(&self, look: &Look, design: &Design, t: f64, last: f64) -> Option<f64> {
        let enough = |t: f64| self.is_enough(look, design, t);
        if enough(t) {
            return Some(t);
        }
        if !enough(last) {
            return None;
        }
        let (mut low, mut high) = (t, last);
        while high / low > 1.0 + 1e-3 {
            let middle = (low * high).sqrt();
            if enough(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high.max(GROWTH * t).min(last))
    }

    /// (eq. 13) with the variances of this design.
    fn is_enough(&self, look: &Look, design: &Design, t: f64) -> bool {
        let [w, e] = look.variances(design, t, self.z);
        let norm = look.norm_n.max(self.floor * look.norms);
        self.grid.budget(self.epsilon, w.sqrt() / norm, e.sqrt() / look.d, look.rank) <= 1.0
    }
}
