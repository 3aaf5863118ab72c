//! Upper bounds on logits that selectors prove for the untaken tokens.

use vattention_core::Result;

use super::{Array, expect};
use crate::Device;

/// Tokens of a span, which has one bound.
pub(super) const SPAN: usize = 4096;

/// Upper bound on the logits of the untaken tokens of each row, span by span.
#[derive(Clone, Debug)]
pub struct Bounds<D: Device> {
    /// `[rows, spans]`; −∞ where a span has no untaken token.
    pub(super) numbers: Array<D, f32>,
    pub(super) spans: usize,
    pub(super) rows: usize,
    pub(super) capacity: usize,
}

/// Inputs of formulas that follow from upper bounds on attention weights.
#[derive(Clone, Copy, Debug)]
pub struct Proofs<'a, D: Device> {
    /// Upper bounds on each query head's logits.
    pub bounds: &'a Bounds<D>,
    /// Largest norm of a value of each list's KV head, `[lists]`.
    pub longest: &'a Array<D, f64>,
}

impl<D: Device> Bounds<D> {
    /// Allocates the bounds of `rows` rows of at most `capacity` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        let spans = capacity.div_ceil(SPAN);
        let numbers = Array::new(device, &vec![f32::NEG_INFINITY; rows * spans])?;
        Ok(Self { numbers, spans, rows, capacity })
    }

    /// Writes the bound of each row, `[rows]`.
    ///
    /// # Errors
    /// If there is not one bound for each row, or the device fails.
    pub fn write(&self, bounds: &[f32]) -> Result<()> {
        expect("bounds", self.rows, bounds.len())?;
        let mut numbers = vec![f32::NEG_INFINITY; self.numbers.len()];
        numbers
            .iter_mut()
            .step_by(self.spans.max(1))
            .zip(bounds)
            .for_each(|(x, &bound)| *x = bound);
        self.numbers.write(&numbers, 0)
    }

    /// Returns the bounds of rows that see `visible` tokens, `[rows]`; −∞ if no token is untaken.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If `visible` exceeds the capacity.
    pub fn read(&self, visible: usize) -> Result<Vec<f32>> {
        assert!(visible <= self.capacity, "room for {} tokens", self.capacity);
        let numbers = self.numbers.read()?;
        let row = |row| {
            let spans = &numbers[row * self.spans..][..visible.div_ceil(SPAN)];
            spans.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        };
        Ok((0..self.rows).map(row).collect())
    }
}
