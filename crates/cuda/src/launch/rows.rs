//! Layout and addresses of rows of keys and values on the device.

use std::sync::Arc;

use vattention_core::{Error, Result, Storage};

use super::Array;
use crate::Device;

/// Largest head dimension for which the kernels have registers.
const LARGEST_DIM: usize = 256;

/// Number of elements to a multiple of which keys and values are padded.
const PADDING: usize = 32;

/// Layout of a row in its page: `[K, zeros | V, zeros]`, each part a multiple of 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    storage: Storage,
    head_dim: usize,
    value_dim: usize,
    log2_page: u32,
}

impl RowLayout {
    /// Returns the layout of rows in pages of `2^log2_page`.
    ///
    /// # Errors
    /// If a dimension is not in 1 to 256, a page has more than 2³⁰ rows, or rows have scales.
    pub fn new(
        storage: Storage,
        head_dim: usize,
        value_dim: usize,
        log2_page: u32,
    ) -> Result<Self> {
        for (what, dim) in [("head_dim", head_dim), ("value_dim", value_dim)] {
            if !(1..=LARGEST_DIM).contains(&dim) {
                return Err(Error::shape(what, format_args!("1 to {LARGEST_DIM} on CUDA"), dim));
            }
        }
        if !Storage::FLOATS.contains(&storage) {
            return Err(Error::shape("storage", "f32, f16 or bf16 on CUDA", storage.name()));
        }
        if log2_page > 30 {
            return Err(Error::shape("rows in a page", "at most 2^30", 1_u64 << log2_page.min(63)));
        }
        Ok(Self { storage, head_dim, value_dim, log2_page })
    }

    /// Number type of the elements.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Number of elements of a key.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Number of elements of a value.
    pub fn value_dim(&self) -> usize {
        self.value_dim
    }

    /// Base-2 logarithm of the number of rows in a page.
    pub fn log2_page(&self) -> u32 {
        self.log2_page
    }

    /// Index of the value's first element in a row.
    pub fn value_offset(&self) -> usize {
        self.head_dim.next_multiple_of(PADDING)
    }

    /// Number of elements of a value, with padding.
    pub(super) fn value_padded(&self) -> usize {
        self.value_dim.next_multiple_of(PADDING)
    }

    /// Number of elements from row to row.
    pub fn stride(&self) -> usize {
        self.value_offset() + self.value_padded()
    }

    /// Constants for the compilation of kernels that read rows.
    pub(super) fn constants(&self) -> Vec<(&'static str, String)> {
        vec![
            ("ELEMENT", self.storage.name().to_owned()),
            ("HEAD_DIM", self.head_dim.to_string()),
            ("HEAD_PADDED", self.value_offset().to_string()),
            ("VALUE_PADDED", self.value_padded().to_string()),
            ("LOG2_PAGE", self.log2_page.to_string()),
        ]
    }

    /// Bytes of a number.
    pub(super) fn number_bytes(&self) -> usize {
        self.storage.number_bytes()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.stride() * self.number_bytes()
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.row_bytes() << self.log2_page
    }
}

/// Rows of one KV head, in pages that other sequences may share.
#[derive(Debug)]
pub struct Pages<D: Device> {
    layout: RowLayout,
    parts: Vec<Arc<Array<D, u8>>>,
    /// Addresses of the pages.
    table: Array<D, u64>,
}

impl<D: Device> Pages<D> {
    /// Builds the table of the pages, in order.
    ///
    /// # Errors
    /// If a page is not of [`page_bytes`](RowLayout::page_bytes) bytes, or there is no memory for
    /// the table.
    pub fn new(device: &D, layout: RowLayout, pages: Vec<Arc<Array<D, u8>>>) -> Result<Self> {
        for page in &pages {
            super::expect("bytes of a page", layout.page_bytes(), page.len())?;
        }
        let addresses: Vec<u64> = pages.iter().map(|page| page.address()).collect();
        let table = Array::new(device, &addresses)?;
        Ok(Self { layout, parts: pages, table })
    }

    /// The pages, in order.
    pub fn pages(&self) -> &[Arc<Array<D, u8>>] {
        &self.parts
    }

    /// Layout of the rows.
    pub fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Number of rows for which there are pages.
    pub fn rows(&self) -> usize {
        self.parts.len() << self.layout.log2_page
    }

    /// Fails unless the rows have this layout.
    pub(super) fn expect_layout(&self, layout: RowLayout) -> Result<()> {
        if self.layout == layout {
            return Ok(());
        }
        Err(Error::shape("rows", format!("{layout:?}"), self.layout))
    }

    /// Shares ownership with work that needs at least `rows` rows of this layout.
    pub(super) fn keep_for(
        &self,
        work: &mut super::Work<D>,
        layout: RowLayout,
        rows: usize,
    ) -> Result<()> {
        self.expect_layout(layout)?;
        if self.rows() < rows {
            return Err(Error::shape("rows of a head", rows, self.rows()));
        }
        self.keep(work);
        Ok(())
    }

    /// Shares ownership of the pages and the table with some work.
    pub(super) fn keep(&self, work: &mut super::Work<D>) {
        self.parts.iter().for_each(|page| work.keep(page));
        work.keep(&self.table);
    }

    /// Address of the table.
    pub(crate) fn table(&self) -> u64 {
        self.table.address()
    }
}
