//! Scores of tokens, on the device.

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::taken::stride;
use super::{Array, expect};
use crate::Device;

/// A number type that tokens can be ranked by on the device: `f32` or `u16`.
pub trait Ranked: Copy + FromBytes + IntoBytes + Immutable {
    /// Its name in the kernels.
    const NAME: &str;
}

impl Ranked for u16 {
    const NAME: &str = "u16";
}

impl Ranked for f32 {
    const NAME: &str = "f32";
}

/// A score for each token of each row, larger is better, in room for `capacity` tokens.
#[derive(Debug)]
pub struct Scores<D: Device, S> {
    /// `[rows, stride]`
    pub(super) numbers: Array<D, S>,
    pub(super) rows: usize,
    pub(super) capacity: usize,
}

impl<D: Device, S: Ranked> Scores<D, S> {
    /// Room for those of so many tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        let numbers = Array::zeros(device, rows * stride(capacity))?;
        Ok(Self { numbers, rows, capacity })
    }

    /// Writes those of the first tokens of each row, `[rows, tokens]`.
    ///
    /// # Errors
    /// If they are not as many of each row, more than there is room for, or the device fails.
    pub fn write(&self, tokens: usize, scores: &[S]) -> Result<()> {
        expect("scores", self.rows * tokens.min(self.capacity), scores.len())?;
        for row in 0..self.rows {
            self.numbers.write(&scores[row * tokens..][..tokens], row * stride(self.capacity))?;
        }
        Ok(())
    }

    /// Those of the first tokens of each row, `[rows, tokens]`.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no room for so many.
    pub fn read(&self, tokens: usize) -> Result<Vec<S>> {
        assert!(tokens <= self.capacity, "room for {} scores", self.capacity);
        let numbers = self.numbers.read()?;
        let row = |row| &numbers[row * stride(self.capacity)..][..tokens];
        Ok((0..self.rows).flat_map(row).copied().collect())
    }
}
