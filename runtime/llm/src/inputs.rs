//! Rows that linear maps are applied to.

use std::sync::OnceLock;

use crate::packed::Activations;

/// Rows `[rows, inputs]`, whose digits are computed once for all matrices that multiply them by
/// integers.
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

    /// The rows as sums of signed bytes.
    pub(crate) fn activations(&self) -> &Activations {
        self.activations.get_or_init(|| Activations::new(self.numbers, self.rows))
    }
}
