//! Scores of tokens, on the device.

use vattention_core::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::taken::stride;
use super::{Array, along_y, expect};
use crate::Device;

/// A number type of scores on the device: `f32` or `u16`.
pub trait ScoreType: Copy + FromBytes + IntoBytes + Immutable {
    /// Name of the type in the kernels.
    const NAME: &str;
}

impl ScoreType for u16 {
    const NAME: &str = "u16";
}

impl ScoreType for f32 {
    const NAME: &str = "f32";
}

/// Scores of the pages of tokens of each row, with memory for `capacity` tokens. Larger is better.
#[derive(Debug)]
pub struct DeviceScores<D: Device, S> {
    /// `[rows, stride / page]`
    pub(super) numbers: Array<D, S>,
    pub(super) rows: usize,
    pub(super) capacity: usize,
    /// Number of tokens that share a score.
    pub(super) page: usize,
}

impl<D: Device, S: ScoreType> DeviceScores<D, S> {
    /// Allocates a score for each of `capacity` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        Self::for_pages(device, rows, capacity, 1)
    }

    /// Allocates a score for each `page` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn for_pages(device: &D, rows: usize, capacity: usize, page: usize) -> Result<Self> {
        let numbers = Array::zeros(device, rows * stride(capacity).div_ceil(page))?;
        Ok(Self { numbers, rows, capacity, page })
    }

    /// Number of tokens that share a score.
    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Number of elements from row to row.
    pub(super) fn stride(&self) -> usize {
        stride(self.capacity).div_ceil(self.page)
    }

    /// Number of blocks along y of kernels where a block scores `sharing` consecutive rows.
    pub(super) fn blocks_of(&self, sharing: usize) -> Result<u32> {
        if !self.rows.is_multiple_of(sharing) {
            let expected = format_args!("a multiple of {sharing}");
            return Err(Error::shape("rows of scores", expected, self.rows));
        }
        along_y("rows", self.rows / sharing)
    }

    /// Number of scores of a row.
    fn room(&self) -> usize {
        self.capacity.div_ceil(self.page)
    }

    /// Writes the scores of the first `count` tokens or pages of each row, `[rows, count]`.
    ///
    /// # Errors
    /// If the number of scores is wrong or exceeds the capacity, or the device fails.
    pub fn write(&self, count: usize, scores: &[S]) -> Result<()> {
        expect("scores", self.rows * count.min(self.room()), scores.len())?;
        for row in 0..self.rows {
            self.numbers.write(&scores[row * count..][..count], row * self.stride())?;
        }
        Ok(())
    }

    /// Returns the scores of the first `count` tokens or pages of each row, `[rows, count]`.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If `count` exceeds the capacity.
    pub fn read(&self, count: usize) -> Result<Vec<S>> {
        assert!(count <= self.room(), "room for {} scores", self.room());
        let numbers = self.numbers.read()?;
        let row = |row| &numbers[row * self.stride()..][..count];
        Ok((0..self.rows).flat_map(row).copied().collect())
    }
}
