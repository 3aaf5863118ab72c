//! Rows of all KV heads on a device.
//!
//! Full pages never change, and forks share them. The last page of each KV head may be filled in
//! part; it belongs to one sequence alone.

use std::ops::Range;
use std::sync::Arc;

use ndarray::Ix2;
use vattention_backends::store;
use vattention_core::{Result, RowsView, engine::Placement};

use crate::Device;
use crate::launch::{Array, Pages, RowLayout};

/// Keys and values of one layer of one sequence.
#[derive(Debug)]
pub(crate) struct DeviceRows<D: Device> {
    device: D,
    layout: RowLayout,
    placement: Placement,
    heads: Vec<Pages<D>>,
}

impl<D: Device> DeviceRows<D> {
    /// Returns empty storage.
    pub(crate) fn new(
        device: D,
        layout: RowLayout,
        kv_heads: usize,
        placement: Placement,
    ) -> Result<Self> {
        let empty = |_| Pages::new(&device, layout, Vec::new());
        let heads = (0..kv_heads).map(empty).collect::<Result<_>>()?;
        Ok(Self { device, layout, placement, heads })
    }

    /// Layout of the rows.
    pub(crate) fn layout(&self) -> RowLayout {
        self.layout
    }

    /// Allocates an empty page.
    fn allocate_page(&self) -> Result<Array<D, u8>> {
        let bytes = self.layout.page_bytes();
        match self.placement {
            Placement::Device => Array::zeros(&self.device, bytes),
            Placement::Host => Array::zeros_on_host(&self.device, bytes),
        }
    }

    /// Pages of each KV head.
    pub(crate) fn heads(&self) -> &[Pages<D>] {
        &self.heads
    }

    /// Writes rows from the index `first` on: keys `[kv_heads, new, head_dim]` and values
    /// `[kv_heads, new, value_dim]`. On failure the rows before `first` keep their contents.
    pub(crate) fn write(
        &mut self,
        first: usize,
        keys: RowsView<'_>,
        values: RowsView<'_>,
    ) -> Result<()> {
        let rows = first + keys.shape()[1];
        let grow = |(i, head): (usize, &Pages<D>)| {
            let grown = self.grown(head, rows)?;
            let pages = grown.as_ref().unwrap_or(head);
            self.write_head(pages, first, keys.index(i), values.index(i))?;
            Ok(grown)
        };
        let grown: Vec<Option<Pages<D>>> =
            self.heads.iter().enumerate().map(grow).collect::<Result<_>>()?;
        for (head, grown) in self.heads.iter_mut().zip(grown) {
            if let Some(grown) = grown {
                *head = grown;
            }
        }
        Ok(())
    }

    /// Pages of a KV head with enough new ones for `rows` rows; `None` if there are enough already.
    fn grown(&self, head: &Pages<D>, rows: usize) -> Result<Option<Pages<D>>> {
        if rows <= head.rows() {
            return Ok(None);
        }
        let mut pages = head.pages().to_vec();
        while pages.len() * self.per_page() < rows {
            pages.push(Arc::new(self.allocate_page()?));
        }
        Pages::new(&self.device, self.layout, pages).map(Some)
    }

    /// Writes the rows of one KV head, page by page.
    fn write_head(
        &self,
        head: &Pages<D>,
        first: usize,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
    ) -> Result<()> {
        let (mut written, new) = (0, keys.shape()[0]);
        while written < new {
            let (page, row) =
                ((first + written) / self.per_page(), (first + written) % self.per_page());
            let end = new.min(written + self.per_page() - row);
            let rows = self.bytes(keys, values, written..end);
            head.pages()[page].write(&rows, row * self.layout.row_bytes())?;
            written = end;
        }
        Ok(())
    }

    /// Encodes the rows in `range` of `[new, head_dim]` and `[new, value_dim]` in the layout of a
    /// page.
    fn bytes(
        &self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        range: Range<usize>,
    ) -> Vec<u8> {
        let row_bytes = self.layout.row_bytes();
        let number = row_bytes / self.layout.stride();
        let key = self.layout.head_dim() * number;
        let value = self.layout.value_offset() * number;
        let mut bytes = vec![0; range.len() * row_bytes];
        for (row, i) in bytes.chunks_exact_mut(row_bytes).zip(range) {
            let storage = self.layout.storage();
            store(storage, keys.index(i), &mut row[..key]);
            store(storage, values.index(i), &mut row[value..][..self.layout.value_dim() * number]);
        }
        bytes
    }

    /// Forks the first `len` rows. The last page of each KV head is copied if it is not full, and
    /// the others are shared.
    pub(crate) fn fork(&self, len: usize) -> Result<Self> {
        let full = len / self.per_page();
        let fork = |head: &Pages<D>| {
            let mut pages = head.pages()[..full].to_vec();
            if len > full * self.per_page() {
                let copy = self.allocate_page()?;
                copy.write(&head.pages()[full].read()?, 0)?;
                pages.push(Arc::new(copy));
            }
            Pages::new(&self.device, self.layout, pages)
        };
        let heads = self.heads.iter().map(fork).collect::<Result<_>>()?;
        Ok(Self { device: self.device.clone(), heads, ..*self })
    }

    fn per_page(&self) -> usize {
        1 << self.layout.log2_page()
    }
}
