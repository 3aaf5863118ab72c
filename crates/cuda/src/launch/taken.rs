//! Which tokens some rows have taken, on the device.

use vattention_core::{Error, Picks, Result};

use super::Array;
use crate::Device;

/// Tokens of a word of core's picks, of which rows have whole ones.
const ALIGNMENT: usize = 64;

/// The most tokens that can be numbered with some to spare.
const MOST_TOKENS: usize = 1 << 31;

/// A bit for each token of each row, set if it is taken: those of [`Picks`], on the device. Bits of
/// tokens that are not visible are 0.
#[derive(Debug)]
pub struct Taken<D: Device> {
    /// `[rows, stride / 32]`, lower tokens in lower bits.
    pub(super) bits: Array<D, u32>,
    rows: usize,
    capacity: usize,
}

impl<D: Device> Taken<D> {
    /// No tokens, of `rows` rows that see `capacity` at most.
    ///
    /// # Errors
    /// If there are too many, or no memory for them.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        if capacity >= MOST_TOKENS {
            return Err(Error::shape("room for tokens", "less than 2^31 on CUDA", capacity));
        }
        super::along_y("rows", rows)?;
        let bits = Array::zeros(device, rows * stride(capacity) / 32)?;
        Ok(Self { bits, rows, capacity })
    }

    /// Makes the tokens that the rows have picked, `[rows]`, those that are taken.
    ///
    /// # Errors
    /// If they are not as many rows, one sees more tokens than there is room for, or the device
    /// fails.
    pub fn write(&self, picks: &[&Picks]) -> Result<()> {
        super::expect("rows", self.rows, picks.len())?;
        let mut bits = vec![0; self.bits.len()];
        for (row, picks) in picks.iter().enumerate() {
            if picks.visible() > self.capacity {
                let expected = format_args!("at most {}", self.capacity);
                return Err(Error::shape("visible tokens", expected, picks.visible()));
            }
            let halves = picks.words().iter().flat_map(|&word| [word as u32, (word >> 32) as u32]);
            let row = &mut bits[row * self.words_of_row()..];
            row.iter_mut().zip(halves).for_each(|(bits, half)| *bits = half);
        }
        self.bits.write(&bits, 0)
    }

    /// The bits of each row, as [`Picks::words`] has them, up to the capacity.
    ///
    /// # Errors
    /// If the device fails.
    pub fn words(&self) -> Result<Vec<Vec<u64>>> {
        let bits = self.bits.read()?;
        let row = |row| {
            let bits = &bits[row * self.words_of_row()..][..self.words_of_row()];
            let word = |&[low, high]: &[u32; 2]| u64::from(low) | u64::from(high) << 32;
            bits.as_chunks().0.iter().map(word).collect()
        };
        Ok((0..self.rows).map(row).collect())
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens that each row has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many lists there are of the union of `members` rows one after the other.
    pub(super) fn lists(&self, members: usize) -> Result<usize> {
        if members == 0 || !self.rows.is_multiple_of(members) {
            return Err(Error::shape("rows", format_args!("a multiple of {members}"), self.rows));
        }
        Ok(self.rows / members)
    }

    /// Words of 32 bits from row to row.
    pub(super) fn words_of_row(&self) -> usize {
        stride(self.capacity) / 32
    }
}

/// Tokens from row to row.
pub(super) fn stride(capacity: usize) -> usize {
    capacity.next_multiple_of(ALIGNMENT)
}
