//! Settings that control how many tokens are read; density and error searches vary them.

use crate::{Fraction, Size};

/// The settings of a selector that decide how many tokens it takes.
#[derive(Debug)]
pub enum Tunable<'a> {
    /// Sizes, which add up.
    Sizes(Vec<&'a mut Size>),
    /// Nothing is set: a sink, which is read beside what is chosen.
    Sink,
    /// The size of a window, which is read beside what is chosen: it is set only where nothing is.
    Window(&'a mut Size),
    /// A share of the attention.
    Mass(&'a mut Fraction),
    /// A share of the attention that one token's must exceed: the lower it is, the more is taken.
    Threshold(&'a mut Fraction),
}

/// The settings of an estimator that decide how much is drawn.
#[derive(Debug)]
pub struct TunableGoal<'a> {
    /// The relative error allowed, if it is a promise.
    pub epsilon: Option<&'a mut Fraction>,
    /// The tokens of a sample, if they are given.
    pub size: Option<&'a mut Size>,
    /// The probability with which the error may exceed epsilon, or its bar.
    pub delta: &'a mut Fraction,
}
