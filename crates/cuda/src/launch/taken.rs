//! Which tokens some rows have taken, on the device.

use vattention_core::{Error, Picks, Result};

use super::{Array, expect};
use crate::Device;

/// Tokens of a word of core's picks, of which rows have whole ones.
const ALIGNMENT: usize = 64;

/// The most tokens that can be numbered with some to spare.
const MOST_TOKENS: usize = 1 << 31;

/// A bit for each visible token of each row, set if it is taken: those of [`Picks`], on the device.
#[derive(Debug)]
pub struct Taken<D: Device> {
    /// `[rows, stride / 32]`, lower tokens in lower bits.
    pub(super) bits: Array<D, u32>,
    rows: usize,
    visible: usize,
}

impl<D: Device> Taken<D> {
    /// No tokens, of `rows` rows that see `visible` each.
    ///
    /// # Errors
    /// If there are too many, or no memory for them.
    pub fn new(device: &D, rows: usize, visible: usize) -> Result<Self> {
        if visible >= MOST_TOKENS {
            return Err(Error::shape("visible tokens", "less than 2^31 on CUDA", visible));
        }
        super::along_y("rows", rows)?;
        let bits = Array::zeros(device, rows * stride(visible) / 32)?;
        Ok(Self { bits, rows, visible })
    }

    /// The tokens that rows with as many visible tokens have picked.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if the rows differ in what they see.
    pub fn of_picks(device: &D, picks: &[&Picks]) -> Result<Self> {
        let visible = picks.first().map_or(0, |picks| picks.visible());
        let taken = Self::new(device, picks.len(), visible)?;
        let mut bits = Vec::with_capacity(taken.bits.len());
        for picks in picks {
            expect("visible tokens", visible, picks.visible())?;
            bits.extend(picks.words().iter().flat_map(|&word| [word as u32, (word >> 32) as u32]));
        }
        taken.bits.write(&bits, 0)?;
        Ok(taken)
    }

    /// The bits of each row, as [`Picks::words`] has them.
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

    /// Tokens that each row sees.
    pub fn visible(&self) -> usize {
        self.visible
    }

    /// Words of 32 bits from row to row.
    pub(super) fn words_of_row(&self) -> usize {
        stride(self.visible) / 32
    }
}

/// Tokens from row to row.
pub(super) fn stride(visible: usize) -> usize {
    visible.next_multiple_of(ALIGNMENT)
}
