//! Error bars from radii that are relative to an estimate.

use crate::formula::{bar_of_radius, sure_bar_of_radius};

/// Conversion of a radius, which is relative to an estimate, to an error relative to the true
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// No conversion: the estimate is a lower bound, or the paper takes it for the true value.
    None,
    /// Conversion for normal errors ([`bar_of_radius`]).
    Normal,
    /// Conversion for errors of any distribution ([`sure_bar_of_radius`]).
    AnyDistribution,
}

impl Conversion {
    /// Error bar of a radius. The bar rises with the radius.
    pub(crate) fn bar(self, radius: f64, delta: f64) -> f64 {
        match self {
            Self::None => radius,
            Self::Normal => bar_of_radius(radius, delta),
            Self::AnyDistribution => sure_bar_of_radius(radius),
        }
    }
}
