//! Scores of tokens, on the device.

use vattention_core::{Error, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::taken::stride;
use super::{Array, along_y, expect};
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

/// A score for each page of tokens of each row, larger is better, in room for `capacity` tokens.
#[derive(Debug)]
pub struct Scores<D: Device, S> {
    /// `[rows, stride / page]`
    pub(super) numbers: Array<D, S>,
    pub(super) rows: usize,
    pub(super) capacity: usize,
    /// Tokens that share a score.
    pub(super) page: usize,
}

impl<D: Device, S: Ranked> Scores<D, S> {
    /// Room for a score of each of `capacity` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        Self::of_pages(device, rows, capacity, 1)
    }

    /// Room for a score of each `page` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn of_pages(device: &D, rows: usize, capacity: usize, page: usize) -> Result<Self> {
        let numbers = Array::zeros(device, rows * stride(capacity).div_ceil(page))?;
        Ok(Self { numbers, rows, capacity, page })
    }

    /// Tokens that share a score.
    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Elements from row to row.
    pub(super) fn stride(&self) -> usize {
        stride(self.capacity).div_ceil(self.page)
    }

    /// Blocks along y of kernels that score `sharing` rows one after the other together.
    pub(super) fn blocks_of(&self, sharing: usize) -> Result<u32> {
        if !self.rows.is_multiple_of(sharing) {
            let expected = format_args!("a multiple of {sharing}");
            return Err(Error::shape("rows of scores", expected, self.rows));
        }
        along_y("rows", self.rows / sharing)
    }

    /// Scores of a row.
    fn room(&self) -> usize {
        self.capacity.div_ceil(self.page)
    }

    /// Writes those of the first tokens or pages of each row, `[rows, count]`.
    ///
    /// # Errors
    /// If they are not as many of each row, more than there is room for, or the device fails.
    pub fn write(&self, count: usize, scores: &[S]) -> Result<()> {
        expect("scores", self.rows * count.min(self.room()), scores.len())?;
        for row in 0..self.rows {
            self.numbers.write(&scores[row * count..][..count], row * self.stride())?;
        }
        Ok(())
    }

    /// Those of the first tokens or pages of each row, `[rows, count]`.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If `count` exceeds the room.
    pub fn read(&self, count: usize) -> Result<Vec<S>> {
        assert!(count <= self.room(), "room for {} scores", self.room());
        let numbers = self.numbers.read()?;
        let row = |row| &numbers[row * self.stride()..][..count];
        Ok((0..self.rows).flat_map(row).copied().collect())
    }
}
