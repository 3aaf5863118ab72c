//! Settings that control how many tokens are read; density and error searches vary them.

use crate::{Fraction, Size};

/// Settings of a selector that control how many tokens it picks.
#[derive(Debug)]
pub enum Tunable<'a> {
    /// Sizes, whose sum is the number of picked tokens.
    Sizes(Vec<&'a mut Size>),
    /// No setting: attention sinks, which are read in addition to other tokens.
    Sink,
    /// Size of a window, which is read in addition to other tokens. Searches vary it only if no
    /// selector has a setting of another kind.
    Window(&'a mut Size),
    /// Attention weight that the picked tokens must reach together.
    Mass(&'a mut Fraction),
    /// Attention weight that a token must exceed to be picked. A lower threshold picks more tokens.
    Threshold(&'a mut Fraction),
}

impl Tunable<'_> {
    /// Copies the settings of another selector. Returns false, and changes nothing, if they are of
    /// another kind.
    pub fn copy_from(self, other: Tunable<'_>) -> bool {
        match (self, other) {
            (Self::Sizes(own), Tunable::Sizes(other)) if own.len() == other.len() => {
                own.into_iter().zip(other).for_each(|(own, other)| *own = *other);
            }
            (Self::Sink, Tunable::Sink) => {}
            (Self::Window(own), Tunable::Window(other)) => *own = *other,
            (Self::Mass(own), Tunable::Mass(other))
            | (Self::Threshold(own), Tunable::Threshold(other)) => *own = *other,
            _ => return false,
        }
        true
    }
}

/// Settings of an estimator that control how many tokens are drawn.
#[derive(Debug)]
pub struct TunableGoal<'a> {
    /// Relative error allowed, if the goal is a promise.
    pub epsilon: Option<&'a mut Fraction>,
    /// Size of a sample, if the goal is a size.
    pub size: Option<&'a mut Size>,
    /// Probability with which the error may exceed epsilon, or the radius of the error bar.
    pub delta: &'a mut Fraction,
}

impl TunableGoal<'_> {
    /// Copies the settings that both estimators have.
    pub fn copy_from(self, other: TunableGoal<'_>) {
        *self.delta = *other.delta;
        if let (Some(own), Some(other)) = (self.epsilon, other.epsilon) {
            *own = *other;
        }
        if let (Some(own), Some(other)) = (self.size, other.size) {
            *own = *other;
        }
    }
}
