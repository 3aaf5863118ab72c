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

#[cfg(test)]
mod tests {
    use vattention_core::Target;

    use super::*;
    use crate::formula::z_two;
    use crate::goal::Looks;

    /// The probability that the bar of a number `o`, or of its floor `f` if that is more, is exceeded by
    /// an error of standard deviation 1.
    fn misses(conversion: Conversion, o: f64, f: f64, delta: f64) -> f64 {
        let goal = Goal {
            target: Target::Numerator,
            epsilon: f64::INFINITY,
            delta,
            looks: Looks::One,
            floor: f,
            scale: Scale::Estimate,
        };
        let step = 1e-3;
        let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let errors = (-8000..8000).map(|cell| (f64::from(cell) + 0.5) * step);
        let exceeds = |error: &f64| {
            let radius = |goal: &Goal| match goal.scale {
                Scale::Estimate => z_two(delta) / (o + error).abs(),
                Scale::Floor => z_two(delta) / f,
            };
            error.abs() > conversion.bar(&goal, radius) * o.max(f)
        };
        errors.filter(exceeds).map(|error| density(error) * step).sum()
    }

    #[test]
    fn bars_near_a_floor_are_exceeded_with_probability_delta_at_most() {
        for delta in [0.02, 0.1, 0.3] {
            for f in [1.0, 4.0, 20.0] {
                for share in [0.1, 0.8, 1.0, 1.05, 1.2, 1.5, 3.0] {
                    let misses = misses(Conversion::Normal, share * f, f, delta);
                    assert!(
                        misses <= delta + 1e-3,
                        "{misses} at {delta}, {share} of the floor {f}"
                    );
                }
            }
        }
    }

    /// The bar and the budget are each other's inverse, with a floor and without.
    #[test]
    fn budgets_are_the_least_whose_bar_is_epsilon() {
        for (floor, conversion) in [
            (0.0, Conversion::Normal),
            (0.0, Conversion::Sure),
            (0.0, Conversion::None),
            (0.5, Conversion::Normal),
            (0.01, Conversion::Normal),
        ] {
            for epsilon in [0.051, 0.31, 0.93] {
                let (target, looks, scale) = (Target::Sdpa, Looks::List, Scale::Estimate);
                let goal = Goal { target, epsilon, delta: 0.1, looks, floor, scale };
                let norm = |goal: &Goal| if goal.scale == Scale::Floor { floor } else { 0.2 };
                let bar =
                    |b: usize| conversion.bar(&goal, |goal| 3.0 / (b as f64).sqrt() / norm(goal));
                let tokens =
                    |goal: &Goal| (3.0 / goal.epsilon / norm(goal)).powi(2).ceil() as usize;
                let budget = conversion.budget(&goal, tokens);
                assert!(bar(budget) <= epsilon * (1.0 + 1e-9) && bar(budget - 1) > epsilon);
            }
        }
    }
}
