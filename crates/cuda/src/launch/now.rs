//! What differs from step to step, on the device, where recorded kernels find it.

use vattention_core::Result;

use super::Array;
use crate::Device;

/// Numbers of one step.
#[derive(Clone, Debug)]
pub struct Now<D: Device> {
    /// Visible tokens, the two sides of their random order, and the tokens of the first look.
    pub(super) numbers: Array<D, u32>,
    /// The most visible tokens that there is room for; kernels see no more than that.
    pub(super) capacity: usize,
}

impl<D: Device> Now<D> {
    /// How many numbers they are.
    pub const LEN: usize = 4;

    /// With room for `capacity` tokens; `numbers` `[LEN]` are written before each step.
    ///
    /// # Errors
    /// If `numbers` has another length.
    pub fn new(numbers: Array<D, u32>, capacity: usize) -> Result<Self> {
        super::expect("inputs of a step", Self::LEN, numbers.len())?;
        Ok(Self { numbers, capacity })
    }

    /// Fails unless something has room for as many tokens.
    pub(super) fn expect_room(&self, what: &str, capacity: usize) -> Result<()> {
        super::expect(&format!("room for tokens of {what}"), self.capacity, capacity)
    }

    /// The inputs of a step with `visible` tokens, at least 1, of which samples are drawn in
    /// orders with these sides, and looked at when they have `base` tokens.
    pub fn numbers(visible: usize, sides: [u32; 2], base: usize) -> [u32; 4] {
        [visible as u32, sides[0], sides[1], base as u32]
    }
}
