//! Where rows of keys and values are on the device.

use std::sync::Arc;

use vattention_core::{Error, Result, Storage};

use super::Array;
use crate::Device;

/// The largest head that the kernels have registers for.
const LARGEST_DIM: usize = 256;

/// Keys and values are padded to a multiple of this many elements.
const PADDING: usize = 32;

/// How a token's row lies in its page: `[K, zeros | V, zeros]`, each part a multiple of 32 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    storage: Storage,
    head_dim: usize,
    value_dim: usize,
    log2_page: u32,
}

impl RowLayout {
    /// Rows in pages of `2^log2_page`.
    ///
    /// # Errors
    /// If a size is not in 1 to 256, or a page of more than 2³⁰ rows.
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
        if log2_page > 30 {
            return Err(Error::shape("rows in a page", "at most 2^30", 1_u64 << log2_page.min(63)));
        }
        Ok(Self { storage, head_dim, value_dim, log2_page })
    }

    /// What the numbers are.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Elements of a key.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Elements of a value.
    pub fn value_dim(&self) -> usize {
        self.value_dim
    }

    /// Rows in a page are `2^log2_page`.
    pub fn log2_page(&self) -> u32 {
        self.log2_page
    }

    /// The number of a row at which its value begins.
    pub fn value_offset(&self) -> usize {
        self.head_dim.next_multiple_of(PADDING)
    }

    /// Elements of a value, with those behind it.
    pub(super) fn value_padded(&self) -> usize {
        self.value_dim.next_multiple_of(PADDING)
    }

    /// Elements from row to row.
    pub fn stride(&self) -> usize {
        self.value_offset() + self.value_padded()
    }

    /// What kernels that read rows are compiled with.
    pub(super) fn constants(&self) -> Vec<(&'static str, String)> {
        let element = match self.storage {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
        };
        vec![
            ("ELEMENT", element.to_owned()),
            ("HEAD_DIM", self.head_dim.to_string()),
            ("HEAD_PADDED", self.value_offset().to_string()),
            ("VALUE_PADDED", self.value_padded().to_string()),
            ("LOG2_PAGE", self.log2_page.to_string()),
        ]
    }

    /// Bytes of a number.
    pub(super) fn number_bytes(&self) -> usize {
        match self.storage {
            Storage::F32 => 4,
            Storage::F16 | Storage::Bf16 => 2,
        }
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

/// Rows of one KV head, in pages that others may share.
#[derive(Debug)]
pub struct Pages<D: Device> {
    layout: RowLayout,
    parts: Vec<Arc<Array<D, u8>>>,
    /// Where they are.
    table: Array<D, u64>,
}

impl<D: Device> Pages<D> {
    /// The pages, in order.
    ///
    /// # Errors
    /// If one is not of [`page_bytes`](RowLayout::page_bytes), or there is no memory for their table.
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

    /// How their rows lie.
    pub fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Rows that there is room for.
    pub fn rows(&self) -> usize {
        self.parts.len() << self.layout.log2_page
    }

    /// Fails unless its rows lie so.
    pub(super) fn expect_layout(&self, layout: RowLayout) -> Result<()> {
        if self.layout == layout {
            return Ok(());
        }
        Err(Error::shape("rows", format!("{layout:?}"), self.layout))
    }

    /// Keeps all of it for work on that many rows that lie so.
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

    /// Keeps all of it for some work.
    pub(super) fn keep(&self, work: &mut super::Work<D>) {
        self.parts.iter().for_each(|page| work.keep(page));
        work.keep(&self.table);
    }

    /// Where the table is.
    pub(crate) fn table(&self) -> u64 {
        self.table.address()
    }
}
