//! The rows of all KV heads, growing on a device.
//!
//! Full pages never change, and forks share them; the last page of each KV head, partly filled,
//! belongs to one sequence alone.

use std::ops::Range;
use std::sync::Arc;

use ndarray::Ix2;
use vattention_backends::store;
use vattention_core::{Result, RowsView, engine::Placement};

use crate::Device;
use crate::launch::{Array, Pages, RowLayout};

/// Keys and values of one layer of one sequence.
#[derive(Debug)]
pub(crate) struct Rows<D: Device> {
    device: D,
    layout: RowLayout,
    placement: Placement,
    heads: Vec<Pages<D>>,
}

impl<D: Device> Rows<D> {
    /// None yet.
    pub(crate) fn new(
        device: D,
        layout: RowLayout,
        kv_heads: usize,
        placement: Placement,
    ) -> Result<Self> {
        let none = |_| Pages::new(&device, layout, Vec::new());
        let heads = (0..kv_heads).map(none).collect::<Result<_>>()?;
        Ok(Self { device, layout, placement, heads })
    }

    /// How they lie.
    pub(crate) fn layout(&self) -> RowLayout {
        self.layout
    }

    /// An empty page.
    fn page(&self) -> Result<Array<D, u8>> {
        let bytes = self.layout.page_bytes();
        match self.placement {
            Placement::Device => Array::zeros(&self.device, bytes),
            Placement::Host => Array::zeros_on_host(&self.device, bytes),
        }
    }

    /// Of each KV head.
    pub(crate) fn heads(&self) -> &[Pages<D>] {
        &self.heads
    }

    /// Writes rows from the place `first` on: keys `[kv_heads, new, head_dim]` and values
    /// `[kv_heads, new, value_dim]`. If it fails, the rows before `first` are as they were.
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

    /// The pages of a KV head, and as many more as `rows` need; `None` if it has room.
    fn grown(&self, head: &Pages<D>, rows: usize) -> Result<Option<Pages<D>>> {
        if rows <= head.rows() {
            return Ok(None);
        }
        let mut pages = head.pages().to_vec();
        while pages.len() * self.per_page() < rows {
            pages.push(Arc::new(self.page()?));
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

    /// Some rows of `[new, head_dim]` and `[new, value_dim]` as they lie in a page.
    fn bytes(
        &self,
        keys: RowsView<'_, Ix2>,
        values: RowsView<'_, Ix2>,
        some: Range<usize>,
    ) -> Vec<u8> {
        let row_bytes = self.layout.row_bytes();
        let number = row_bytes / self.layout.stride();
        let key = self.layout.head_dim() * number;
        let value = self.layout.value_offset() * number;
        let mut bytes = vec![0; some.len() * row_bytes];
        for (row, i) in bytes.chunks_exact_mut(row_bytes).zip(some) {
            let storage = self.layout.storage();
            store(storage, keys.index(i), &mut row[..key]);
            store(storage, values.index(i), &mut row[value..][..self.layout.value_dim() * number]);
        }
        bytes
    }

    /// Rows that go on from the first `len`. Of each KV head the last page, if it is not full, is
    /// copied, and the others are shared.
    pub(crate) fn fork(&self, len: usize) -> Result<Self> {
        let full = len / self.per_page();
        let fork = |head: &Pages<D>| {
            let mut pages = head.pages()[..full].to_vec();
            if len > full * self.per_page() {
                let copy = self.page()?;
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
