//! Bounds of the keys of pages, on the device.

use vattention_core::Result;

use super::{Array, RowLayout};
use crate::Device;

/// The least and the largest number of each channel over the keys of each page of tokens.
#[derive(Debug)]
pub struct PageBounds<D: Device> {
    /// `[pages, 2, value_offset]`, as rows are stored.
    numbers: Array<D, u8>,
    layout: RowLayout,
    page: usize,
    capacity: usize,
}

impl<D: Device> PageBounds<D> {
    /// Room for the bounds of `capacity` tokens, `page` in each page.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, layout: RowLayout, page: usize, capacity: usize) -> Result<Self> {
        let numbers = Array::zeros(device, capacity.div_ceil(page) * bytes_of_page(layout))?;
        Ok(Self { numbers, layout, page, capacity })
    }

    /// Of what they are: the rows, tokens of a page, tokens in all.
    pub(crate) fn of(&self) -> (RowLayout, usize, usize) {
        (self.layout, self.page, self.capacity)
    }

    /// The bytes that the bounds of `pages` pages take.
    pub(crate) fn bytes_of(&self, pages: usize) -> usize {
        pages * bytes_of_page(self.layout)
    }

    /// Tokens of a page.
    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Where they are, for [`ScorePages`](super::ScorePages).
    pub(crate) fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// The numbers, to be kept.
    pub(super) fn numbers(&self) -> &Array<D, u8> {
        &self.numbers
    }
}

fn bytes_of_page(layout: RowLayout) -> usize {
    2 * layout.value_offset() * layout.number_bytes()
}
