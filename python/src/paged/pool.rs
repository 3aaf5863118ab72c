//! The pool of an engine: blocks of rows, which sequences name in block tables.

use std::ops::Range;
use std::slice;

use numpy::ndarray::{ArrayView4, Axis, Ix4, s};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use vattention::backends::HeadRows;
use vattention::engine::{Element, PageLayout, Tokens};
use vattention::{RowsView, Shape, Storage};

use super::table::{BlockTable, PoolSize};
use crate::array::InputArray;

/// Arrays of a pool, which keep its memory alive during a call.
pub(super) enum PoolArrays {
    /// Each row is a key and a value.
    Joined(InputArray),
    Separate {
        keys: InputArray,
        values: InputArray,
    },
}

/// A pool, borrowed from its arrays.
#[derive(Clone, Copy)]
pub(super) struct Pool<'a> {
    keys: PoolRows<'a>,
    values: PoolRows<'a>,
}

/// Keys or values of a pool, `[blocks, kv_heads, block, dim]`.
#[derive(Clone, Copy)]
pub(super) struct PoolRows<'a> {
    rows: RowsView<'a, Ix4>,
    page: PageLayout,
}

impl PoolArrays {
    /// Imports an array, or a tuple of keys and values.
    pub(super) fn new(pool: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Ok(pair) = pool.cast::<PyTuple>() else {
            return Ok(Self::Joined(InputArray::new("pool", pool)?));
        };
        if pair.len() != 2 {
            return Err(PyValueError::new_err(format!(
                "pool: expected an array, or a tuple of keys and values, got a tuple of {}",
                pair.len()
            )));
        }
        Ok(Self::Separate {
            keys: InputArray::new("pool[0]", &pair.get_item(0)?)?,
            values: InputArray::new("pool[1]", &pair.get_item(1)?)?,
        })
    }

    /// Checks that the library may write to the pool.
    pub(super) fn check_writable(&self) -> PyResult<()> {
        match self {
            Self::Joined(rows) => rows.check_writable(),
            Self::Separate { keys, values } => {
                keys.check_writable()?;
                values.check_writable()
            }
        }
    }

    /// Borrows the pool of a layer of this shape.
    pub(super) fn borrow(&self, shape: Shape) -> PyResult<Pool<'_>> {
        let Shape { kv_heads, head_dim, value_dim, .. } = shape;
        match self {
            Self::Joined(array) => {
                let names = ("pool", "[blocks, kv_heads, block, head_dim + value_dim]");
                let rows = PoolRows::new(names, array, [kv_heads, head_dim + value_dim])?;
                let (keys, values) = (0..head_dim, head_dim..head_dim + value_dim);
                Ok(Pool { keys: rows.columns(keys), values: rows.columns(values) })
            }
            Self::Separate { keys, values } => {
                let names = ("pool[0]", "[blocks, kv_heads, block, head_dim]");
                let keys = PoolRows::new(names, keys, [kv_heads, head_dim])?;
                let names = ("pool[1]", "[blocks, kv_heads, block, value_dim]");
                let values = PoolRows::new(names, values, [kv_heads, value_dim])?;
                keys.check_same_blocks(&values)?;
                Ok(Pool { keys, values })
            }
        }
    }
}

impl<'a> Pool<'a> {
    pub(super) fn size(&self) -> PoolSize {
        PoolSize { blocks: self.keys.rows.shape()[0], block: self.keys.page.rows }
    }

    pub(super) fn keys(&self) -> PoolRows<'a> {
        self.keys
    }

    pub(super) fn values(&self) -> PoolRows<'a> {
        self.values
    }

    /// Borrows the rows of a KV head of a sequence.
    pub(super) fn head_rows<'p>(
        &'p self,
        kv_head: usize,
        table: &'p BlockTable,
    ) -> vattention::Result<HeadRows<'p>> {
        Ok(HeadRows {
            keys: self.keys.tokens(kv_head, table)?,
            values: self.values.tokens(kv_head, table)?,
        })
    }
}

impl<'a> PoolRows<'a> {
    /// Borrows an array for `[kv_heads, dim]`. `names` are those of the array and its shape.
    fn new(
        (name, shape): (&str, &str),
        array: &'a InputArray,
        [kv_heads, dim]: [usize; 2],
    ) -> PyResult<Self> {
        let rows: RowsView<'_, Ix4> = array.rows(shape)?;
        let got = rows.shape();
        if [got[1], got[3]] != [kv_heads, dim] {
            let expected = [got[0], kv_heads, got[2], dim];
            return Err(PyValueError::new_err(format!(
                "{name}: expected {expected:?}, which is {shape}, got {got:?}"
            )));
        }
        if got[2] == 0 {
            return Err(PyValueError::new_err(format!(
                "{name}: expected at least 1 row in a block, got {got:?}"
            )));
        }
        let page = find_layout(&rows).ok_or_else(|| {
            let strides = strides(&rows);
            PyValueError::new_err(format!(
                "{name}: expected the numbers of a row side by side, then the rows of a block in \
                 order, and blocks that are not interleaved, got strides of {strides:?} elements"
            ))
        })?;
        Ok(Self { rows, page })
    }

    /// Checks that values have the type and the blocks of these keys.
    fn check_same_blocks(&self, values: &Self) -> PyResult<()> {
        let ([blocks, _, block, _], [got_blocks, _, got_block, _]) =
            (dims(&self.rows), dims(&values.rows));
        if [blocks, block] != [got_blocks, got_block] {
            return Err(PyValueError::new_err(format!(
                "pool[1]: expected {blocks} blocks of {block} rows, as in pool[0], \
                 got {got_blocks} of {got_block}"
            )));
        }
        let (expected, got) = (self.storage(), values.storage());
        if expected != got {
            return Err(PyTypeError::new_err(format!(
                "pool[1]: expected {expected}, the type of pool[0], got {got}"
            )));
        }
        Ok(())
    }

    /// Number type of the rows.
    pub(super) fn storage(&self) -> Storage {
        match self.rows {
            RowsView::F32(_) => Storage::F32,
            RowsView::F16(_) => Storage::F16,
            RowsView::Bf16(_) => Storage::Bf16,
        }
    }

    /// Pointer to the first byte of a row of a KV head.
    pub(super) fn row_start(&self, block: usize, kv_head: usize, row: usize) -> *const u8 {
        let place = s![block, kv_head, row, ..];
        match &self.rows {
            RowsView::F32(rows) => rows.slice(place).as_ptr().cast(),
            RowsView::F16(rows) => rows.slice(place).as_ptr().cast(),
            RowsView::Bf16(rows) => rows.slice(place).as_ptr().cast(),
        }
    }

    /// Restricts rows to a range of their elements.
    fn columns(self, columns: Range<usize>) -> Self {
        let part = s![.., .., .., columns];
        let rows = match self.rows {
            RowsView::F32(rows) => rows.slice_move(part).into(),
            RowsView::F16(rows) => rows.slice_move(part).into(),
            RowsView::Bf16(rows) => rows.slice_move(part).into(),
        };
        Self { rows, ..self }
    }

    /// Borrows the rows of a KV head of a sequence, `[tokens, dim]`.
    fn tokens<'p>(
        &'p self,
        kv_head: usize,
        table: &'p BlockTable,
    ) -> vattention::Result<Tokens<'p>> {
        match &self.rows {
            RowsView::F32(rows) => borrow_pages(rows.view(), self.page, kv_head, table),
            RowsView::F16(rows) => borrow_pages(rows.view(), self.page, kv_head, table),
            RowsView::Bf16(rows) => borrow_pages(rows.view(), self.page, kv_head, table),
        }
    }
}

/// Borrows the rows of a KV head in the blocks of a sequence. `page` is the layout of `rows`.
fn borrow_pages<'a, T: Element>(
    rows: ArrayView4<'a, T>,
    page: PageLayout,
    kv_head: usize,
    table: &'a BlockTable,
) -> vattention::Result<Tokens<'a>> {
    let head = rows.index_axis_move(Axis(1), kv_head);
    let (blocks, block, dim) = head.dim();
    let last = blocks.saturating_sub(1) * page.stride + (block - 1) * page.row_stride;
    let elements = if blocks == 0 { 0 } else { last + dim };
    // SAFETY: by the layout, no element of the view comes before the first one or after
    // `elements`. The array is alive for `'a`, and the caller does not write to it meanwhile.
    #[allow(unsafe_code)]
    let memory = unsafe { slice::from_raw_parts(head.as_ptr(), elements) };
    Tokens::paged(memory, &table.blocks, page, table.tokens, dim)
}

/// Layout of blocks of rows; `None` if rows have gaps within, or if rows or blocks are not in
/// order.
fn find_layout(rows: &RowsView<'_, Ix4>) -> Option<PageLayout> {
    let ([blocks, _, block, dim], [by_block, _, by_row, by_element]) = (dims(rows), strides(rows));
    if blocks == 0 {
        return Some(PageLayout { rows: block, stride: block * dim, row_stride: dim });
    }
    // The stride of an axis of length 1 has no meaning.
    let row_stride = if block == 1 { dim } else { usize::try_from(by_row).ok()? };
    let extent = (block - 1) * row_stride + dim;
    let stride = if blocks == 1 { extent } else { usize::try_from(by_block).ok()? };
    let is_ordered = by_element == 1 && row_stride >= dim && stride >= extent;
    is_ordered.then_some(PageLayout { rows: block, stride, row_stride })
}

fn dims(rows: &RowsView<'_, Ix4>) -> [usize; 4] {
    std::array::from_fn(|axis| rows.shape()[axis])
}

/// Numbers of elements from one index of each axis to the next.
fn strides(rows: &RowsView<'_, Ix4>) -> [isize; 4] {
    let strides = match rows {
        RowsView::F32(rows) => rows.strides(),
        RowsView::F16(rows) => rows.strides(),
        RowsView::Bf16(rows) => rows.strides(),
    };
    std::array::from_fn(|axis| strides[axis])
}

/// Checks that kernels can read rows of this dimension in place.
pub(super) fn check_dim(name: &str, dim: usize) -> PyResult<()> {
    let multiple = HeadRows::DIM_MULTIPLE;
    if dim.is_multiple_of(multiple) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name}: expected a multiple of {multiple}, got {dim}")))
}
