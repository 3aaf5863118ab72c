//! Input rows of linear maps.

use std::sync::OnceLock;

use crate::packed::Activations;

/// Input rows, `[rows, inputs]`. Their [`Activations`] are computed once, and shared by all
/// matrices that multiply by integers.
pub(crate) struct LinearInputs<'a> {
    numbers: &'a [f32],
    rows: usize,
    activations: OnceLock<Activations>,
}

impl<'a> LinearInputs<'a> {
    pub(crate) fn new(numbers: &'a [f32], rows: usize) -> Self {
        Self { numbers, rows, activations: OnceLock::new() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// `[rows, inputs]`
    pub(crate) fn numbers(&self) -> &'a [f32] {
        self.numbers
    }

    /// Returns the rows as sums of signed bytes; the first call computes them.
    pub(crate) fn activations(&self) -> &Activations {
        self.activations.get_or_init(|| Activations::new(self.numbers, self.rows))
    }
}
