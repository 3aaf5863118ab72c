//! How large a sample must be by the central limit theorem.

use super::design::Design;
use super::look::Look;
use crate::asymptotic::Asymptotic;

/// By how much the threshold grows at least, so that a few looks suffice.
const GROWTH: f64 = 1.0 + 1.0 / 16.0;

/// The least threshold from `t` to `last` that suffices as the sample drawn at `t` sees it, or
/// a little more than `t`; `None` if there is none.
pub(super) fn needed(
    rule: &Asymptotic,
    look: &Look,
    design: &Design,
    t: f64,
    last: f64,
) -> Option<f64> {
    let enough = |t: f64| rule.suffices(&look.estimate, look.variances(design, t, rule.z));
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
