//! Keys and values in the pages of an engine.

use std::ffi::c_void;

use half::{bf16, f16};
use vattention::Shape;
use vattention::backends::HeadRows;
use vattention::engine::{Element, PageLayout, Tokens};

use crate::array::{VA_BF16, VA_F16, VA_F32, VA_Q8, va_dtype};
use crate::pointers::{borrow, read_struct, versioned_struct};
use crate::status::CallError;

/// Number of bytes of the scale of a row of VA_Q8.
const SCALE_BYTES: usize = 4;

/// Keys or values of one KV head in a pool of pages. Row t of a sequence is row t % page_tokens of
/// page table[t / page_tokens]. Row r of page p begins at element offset + p * page_stride + r *
/// row_stride of the pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_rows {
    /// sizeof(va_rows).
    pub size: usize,
    /// Number type; keys and values have the same.
    pub dtype: va_dtype,
    /// First element of the pool.
    pub pool: *const c_void,
    /// Number of elements of the pool. Nothing beyond is read.
    pub elements: usize,
    /// Elements before row 0 of page 0 of this KV head.
    pub offset: usize,
    /// Elements from one page to the next, at least page_tokens * row_stride.
    pub page_stride: usize,
    /// Elements from one row of a page to the next, at least head_dim or value_dim.
    pub row_stride: usize,
    /// VA_Q8: elements, which are bytes, from the pool's first element to the scale of row 0 of
    /// page 0 of this KV head: a VA_F32 in each row, before or behind the integers.
    pub scale_offset: usize,
}

versioned_struct!(va_rows, scale_offset: usize);

/// Keys and values of one KV head of one sequence, borrowed from the engine's pool during a call.
/// Rows of these tokens must not be written meanwhile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_pages {
    /// sizeof(va_pages).
    pub size: usize,
    /// Keys, [tokens, head_dim], after their rotary embedding.
    pub keys: *const va_rows,
    /// Values, [tokens, value_dim].
    pub values: *const va_rows,
    /// Block table: numbers of the sequence's pages.
    pub table: *const u32,
    /// Number of entries of the block table, at least tokens / page_tokens, rounded up.
    pub table_len: usize,
    /// Number of tokens of a page.
    pub page_tokens: usize,
    /// Number of tokens of the sequence.
    pub tokens: usize,
}

versioned_struct!(va_pages, tokens: usize);

/// Borrows the rows of a KV head.
///
/// # Safety
/// Valid `pages` have pools and a block table that are valid for reads during `'a`, and whose rows
/// of this sequence are not written during `'a`.
pub(crate) unsafe fn borrow_pages<'a>(
    pages: *const va_pages,
    shape: Shape,
) -> Result<HeadRows<'a>, CallError> {
    // SAFETY: the caller vouches for the struct.
    let pages = unsafe { read_struct(pages, "pages") }?;
    // SAFETY: the caller vouches for the block table and the pools.
    unsafe {
        let table = borrow(pages.table, pages.table_len, "pages.table")?;
        let sequence = SequencePages { table, page_tokens: pages.page_tokens, len: pages.tokens };
        Ok(HeadRows {
            keys: sequence.borrow_rows(pages.keys, "pages.keys", shape.head_dim)?,
            values: sequence.borrow_rows(pages.values, "pages.values", shape.value_dim)?,
        })
    }
}

/// Pages of a sequence in a pool.
#[derive(Clone, Copy)]
struct SequencePages<'a> {
    table: &'a [u32],
    page_tokens: usize,
    len: usize,
}

impl<'a> SequencePages<'a> {
    /// Borrows keys or values `[len, dim]`.
    ///
    /// # Safety
    /// Valid `rows` have a pool that is valid for reads during `'a`.
    unsafe fn borrow_rows(
        self,
        rows: *const va_rows,
        argument: &str,
        dim: usize,
    ) -> Result<Tokens<'a>, CallError> {
        // SAFETY: the caller vouches for the struct.
        let rows = unsafe { read_struct(rows, argument) }?;
        let place = RowPlace::find(&rows, argument, dim)?;
        // SAFETY: the caller vouches for a pool of this type.
        unsafe {
            match rows.dtype {
                VA_F32 => self.borrow_pool::<f32>(&rows, place, argument),
                VA_F16 => self.borrow_pool::<f16>(&rows, place, argument),
                VA_BF16 => self.borrow_pool::<bf16>(&rows, place, argument),
                VA_Q8 => {
                    let scale = place.find_scale(&rows, argument)?;
                    Ok(self.borrow_pool::<i8>(&rows, place, argument)?.with_scales_in_rows(scale))
                }
                found => {
                    let expected = "VA_F32, VA_F16, VA_BF16 or VA_Q8";
                    let message = format!("{argument}.dtype: expected {expected}, found {found}");
                    Err(CallError::argument(message))
                }
            }
        }
    }

    /// Borrows rows of one number type.
    ///
    /// # Safety
    /// The pool is valid for reads of its elements, of this type, during `'a`.
    unsafe fn borrow_pool<T: Element + 'a>(
        self,
        rows: &va_rows,
        place: RowPlace,
        argument: &str,
    ) -> Result<Tokens<'a>, CallError> {
        // SAFETY: the caller vouches for the pool.
        let pool = unsafe { borrow(rows.pool.cast::<T>(), rows.elements, argument) }?;
        let pool = pool.get(place.first..).unwrap_or_default();
        let va_rows { page_stride, row_stride, .. } = *rows;
        let page = PageLayout { rows: self.page_tokens, stride: page_stride, row_stride };
        let all = Tokens::paged(pool, self.table, page, self.len, row_stride);
        let all = all.map_err(|error| CallError::shape(format!("{argument}: {error}")))?;
        Ok(all.columns(place.column..place.column + place.dim))
    }
}

/// Place of a KV head's rows in the pool: elements `column..column + dim` of stored rows, the first
/// of which begins at the pool's element `first`.
#[derive(Clone, Copy)]
struct RowPlace {
    first: usize,
    column: usize,
    dim: usize,
}

impl RowPlace {
    fn find(rows: &va_rows, argument: &str, dim: usize) -> Result<Self, CallError> {
        let va_rows { offset, row_stride, .. } = *rows;
        if row_stride < dim {
            let message =
                format!("{argument}.row_stride: expected at least {dim}, found {row_stride}");
            return Err(CallError::shape(message));
        }
        let column = offset % row_stride;
        // Rows of several heads may lie side by side, so that a stored row contains this one.
        let column = if column + dim <= row_stride { column } else { 0 };
        Ok(Self { first: offset - column, column, dim })
    }

    /// Byte of a stored row at which its scale begins.
    fn find_scale(self, rows: &va_rows, argument: &str) -> Result<usize, CallError> {
        let scale = rows.scale_offset.checked_sub(self.first);
        scale.filter(|scale| scale.saturating_add(SCALE_BYTES) <= rows.row_stride).ok_or_else(
            || {
                let last = self.first.saturating_add(rows.row_stride).saturating_sub(SCALE_BYTES);
                let (first, found) = (self.first, rows.scale_offset);
                let message =
                    format!("{argument}.scale_offset: expected {first} to {last}, found {found}");
                CallError::shape(message)
            },
        )
    }
}
