//! Inputs that change from step to step, in device memory, where recorded kernels read them.

use vattention_core::Result;

use super::Array;
use crate::Device;

/// Numbers of the current step.
#[derive(Clone, Debug)]
pub struct StepNumbers<D: Device> {
    /// Visible tokens, the two sides of the random order, and the tokens of the first check.
    pub(super) numbers: Array<D, u32>,
    /// Largest number of visible tokens; kernels clamp to this number.
    pub(super) capacity: usize,
}

impl<D: Device> StepNumbers<D> {
    /// Number of elements of `numbers`.
    pub const LEN: usize = 4;

    /// Wraps `numbers` `[LEN]`, which are written before each step of at most `capacity` tokens.
    ///
    /// # Errors
    /// If `numbers` has another length.
    pub fn new(numbers: Array<D, u32>, capacity: usize) -> Result<Self> {
        super::expect("inputs of a step", Self::LEN, numbers.len())?;
        Ok(Self { numbers, capacity })
    }

    /// Fails unless `capacity`, that of another argument, equals this one.
    pub(super) fn expect_room(&self, what: &str, capacity: usize) -> Result<()> {
        super::expect(&format!("room for tokens of {what}"), self.capacity, capacity)
    }

    /// Returns the numbers of a step with `visible` tokens, at least 1. Samples are drawn in random
    /// orders with these sides, and first checked when they have `base` tokens.
    pub fn numbers(visible: usize, sides: [u32; 2], base: usize) -> [u32; 4] {
        [visible as u32, sides[0], sides[1], base as u32]
    }
}
