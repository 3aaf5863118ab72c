//! Error bars and budgets from radii that are relative to an estimate.

use crate::formula::{bar_of_radius, radius_of_bar, radius_of_sure_bar, sure_bar_of_radius};
use crate::goal::{Goal, Scale};

/// Conversion of a radius, which is relative to an estimate, to an error relative to the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// Nothing is converted: the estimate is a lower bound, or the paper takes it for the truth.
    None,
    /// Errors are normal ([`bar_of_radius`]).
    Normal,
    /// Nothing is known of the errors' distribution ([`sure_bar_of_radius`]).
    Sure,
}

impl Conversion {
    /// The error bar, given the radius of a goal. It rises with the radius.
    pub(crate) fn bar(self, goal: &Goal, radius: impl Fn(&Goal) -> f64) -> f64 {
        let relative = radius(goal);
        if !goal.has_floor() {
            return self.convert(relative, goal.delta);
        }
        let of_floor = radius(&Goal { scale: Scale::Floor, ..*goal });
        // A bound that is NaN bounds nothing, so `min` may drop it.
        self.with_floor().convert(relative, goal.delta).min(of_floor)
    }

    /// The budget, given that of a radius of epsilon: the least size whose bar is epsilon.
    pub(crate) fn budget(self, goal: &Goal, tokens: impl Fn(&Goal) -> usize) -> usize {
        if !goal.has_floor() {
            return tokens(&Goal { epsilon: self.invert(goal.epsilon, goal.delta), ..*goal });
        }
        let epsilon = self.with_floor().invert(goal.epsilon, goal.delta);
        let of_floor = tokens(&Goal { scale: Scale::Floor, ..*goal });
        tokens(&Goal { epsilon, ..*goal }).min(of_floor)
    }

    /// The radius whose error bar is `epsilon`.
    pub(crate) fn invert(self, epsilon: f64, delta: f64) -> f64 {
        match self {
            Self::None => epsilon,
            Self::Normal => radius_of_bar(epsilon, delta),
            Self::Sure => radius_of_sure_bar(epsilon),
        }
    }

    fn convert(self, radius: f64, delta: f64) -> f64 {
        match self {
            Self::None => radius,
            Self::Normal => bar_of_radius(radius, delta),
            Self::Sure => sure_bar_of_radius(radius),
        }
    }

    /// Normal errors are converted by what estimates that are too long and too short need on average.
    /// A floor removes the short ones, so with it nothing may be taken from the long ones.
    fn with_floor(self) -> Self {
        if self == Self::Normal { Self::Sure } else { self }
    }
}
