//! Sets of taken tokens, on the device.

use vattention_core::{Error, Picks, Result};

use super::Array;
use crate::Device;

/// Tokens of a word of core's picks. Rows consist of whole words.
const ALIGNMENT: usize = 64;

/// Limit on the capacity, so that numbers of tokens fit in 32 bits with room to spare.
const MOST_TOKENS: usize = 1 << 31;

/// A bit for each token of each row, set if the token is taken; the device's form of [`Picks`].
/// Bits of invisible tokens are 0.
#[derive(Debug)]
pub struct Taken<D: Device> {
    /// `[rows, stride / 32]`, lower tokens in lower bits.
    pub(super) bits: Array<D, u32>,
    rows: usize,
    capacity: usize,
}

impl<D: Device> Taken<D> {
    /// Allocates empty sets for `rows` rows that see at most `capacity` tokens.
    ///
    /// # Errors
    /// If there are too many rows or tokens, or there is no memory for them.
    pub fn new(device: &D, rows: usize, capacity: usize) -> Result<Self> {
        if capacity >= MOST_TOKENS {
            return Err(Error::shape("room for tokens", "less than 2^31 on CUDA", capacity));
        }
        super::along_y("rows", rows)?;
        let bits = Array::zeros(device, rows * stride(capacity) / 32)?;
        Ok(Self { bits, rows, capacity })
    }

    /// Replaces the taken tokens by the picks of each row, `[rows]`.
    ///
    /// # Errors
    /// If there is another number of rows, a row sees more tokens than the capacity, or the device
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

    /// Returns the bits of each row in the format of [`Picks::words`], up to the capacity.
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

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Largest number of tokens of a row.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of lists, each the union of `members` consecutive rows.
    pub(super) fn lists(&self, members: usize) -> Result<usize> {
        if members == 0 || !self.rows.is_multiple_of(members) {
            return Err(Error::shape("rows", format_args!("a multiple of {members}"), self.rows));
        }
        Ok(self.rows / members)
    }

    /// Number of 32-bit words from row to row.
    pub(super) fn words_of_row(&self) -> usize {
        stride(self.capacity) / 32
    }
}

/// Number of tokens from row to row.
pub(super) fn stride(capacity: usize) -> usize {
    capacity.next_multiple_of(ALIGNMENT)
}
