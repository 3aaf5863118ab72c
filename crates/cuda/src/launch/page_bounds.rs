//! Bounds of the keys of pages, on the device.

use vattention_core::Result;

use super::{Array, RowLayout};
use crate::Device;

/// Smallest and largest element of each channel over the keys of each page of tokens.
#[derive(Debug)]
pub struct PageBounds<D: Device> {
    /// `[pages, 2, value_offset]`, in the storage type of rows.
    numbers: Array<D, u8>,
    layout: RowLayout,
    page: usize,
    capacity: usize,
}

impl<D: Device> PageBounds<D> {
    /// Allocates the bounds of `capacity` tokens, `page` in each page.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, layout: RowLayout, page: usize, capacity: usize) -> Result<Self> {
        let numbers = Array::zeros(device, capacity.div_ceil(page) * bytes_of_page(layout))?;
        Ok(Self { numbers, layout, page, capacity })
    }

    /// Layout of the rows, tokens of a page, and tokens in all.
    pub(crate) fn dimensions(&self) -> (RowLayout, usize, usize) {
        (self.layout, self.page, self.capacity)
    }

    /// Bytes that the bounds of `pages` pages take.
    pub(crate) fn bytes_of(&self, pages: usize) -> usize {
        pages * bytes_of_page(self.layout)
    }

    /// Number of tokens of a page.
    pub(crate) fn page(&self) -> usize {
        self.page
    }

    /// Address of the bounds, for [`ScorePages`](super::ScorePages).
    pub(crate) fn address(&self) -> u64 {
        self.numbers.address()
    }

    /// Memory of the bounds, for work to share.
    pub(super) fn numbers(&self) -> &Array<D, u8> {
        &self.numbers
    }
}

fn bytes_of_page(layout: RowLayout) -> usize {
    2 * layout.value_offset() * layout.number_bytes()
}
