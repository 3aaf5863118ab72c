//! Borrowed rows of a KV cache, in the number type and layout in which the cache stores them.

mod products;
mod q8;
mod stored;

use std::num::NonZeroUsize;
use std::ops::Range;

use half::{bf16, f16};
use ndarray::Array2;

use crate::{Error, Result};

use products::{dot, dots, dots_of};

pub use q8::{SCALE_BYTES, largest_query_integer, round_row};
pub use stored::{BlockLayout, Blocks, Element, PageLayout, RowScales, StoredRows};

/// Largest magnitude of a stored number and of an element of a scaled query. The sum of the
/// products of two such numbers over ten thousand dimensions and the query heads of a group, at
/// most 255, does not overflow f32.
pub const MAX_MAGNITUDE: f32 = 1e16;

/// Keys or values, `[len, dim]`, borrowed from the memory in which they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    rows: StoredRows<'a>,
    layout: BlockLayout,
}

impl<'a> Tokens<'a> {
    /// Borrows `len` rows of `dim` elements from one slice. Rows begin `stride ≥ dim` elements
    /// apart. Rows of 8-bit integers need [scales](Self::with_scales).
    ///
    /// # Panics
    /// Panics if the slice is too short, or if `stride < dim`.
    pub fn strided<T: Element>(data: &'a [T], len: usize, dim: usize, stride: usize) -> Self {
        assert!(stride >= dim, "stride {stride} is less than dim {dim}");
        let needed = if len == 0 { 0 } else { (len - 1) * stride + dim };
        assert!(data.len() >= needed, "{len} rows need {needed} elements, got {}", data.len());
        Self {
            rows: T::rows(Blocks::One(data)),
            layout: BlockLayout::new(len, dim, stride, NonZeroUsize::MAX),
        }
    }

    /// Borrows `len` contiguous rows of `dim` elements.
    ///
    /// # Panics
    /// Panics if the slice has fewer than `len · dim` elements.
    pub fn new<T: Element>(data: &'a [T], len: usize, dim: usize) -> Self {
        Self::strided(data, len, dim, dim)
    }

    /// Borrows `len` contiguous rows of `dim` elements from blocks of `per_block` rows, such as the
    /// pages of a serving engine. The last block may be shorter. If there are other elements
    /// between the rows, take [columns](Self::columns) of wider rows.
    ///
    /// # Panics
    /// Panics if the blocks have fewer rows, or if `per_block` is 0.
    pub fn blocks<T: Element>(
        blocks: &'a [&'a [T]],
        per_block: usize,
        len: usize,
        dim: usize,
    ) -> Self {
        let per_block = NonZeroUsize::new(per_block).expect("a block has rows");
        assert!(
            blocks.len() >= len.div_ceil(per_block.get()),
            "{len} rows need more than {} blocks",
            blocks.len()
        );
        for (i, block) in blocks.iter().take(len.div_ceil(per_block.get())).enumerate() {
            let rows = per_block.get().min(len - i * per_block.get());
            assert!(block.len() >= rows * dim, "block {i} holds less than {rows} rows");
        }
        let layout = BlockLayout::new(len, dim, dim, per_block);
        Self { rows: T::rows(Blocks::Many(blocks)), layout }
    }

    /// Borrows `len` rows of `dim` elements from pages of a pool, as serving systems store them.
    ///
    /// Row `t` is row `t % rows` of page `table[t / rows]`. Page `p` begins at element `p · stride`
    /// of the pool, and row `r` of a page at element `r · row_stride` of the page. O(len / rows),
    /// without an allocation.
    ///
    /// # Errors
    /// Returns [`Error::Shape`] if a page has no rows, if rows or pages are longer than their
    /// strides, if the table is too short, or if one of its pages is not in the pool.
    pub fn paged<T: Element>(
        pool: &'a [T],
        table: &'a [u32],
        page: PageLayout,
        len: usize,
        dim: usize,
    ) -> Result<Self> {
        let PageLayout { rows, stride, row_stride } = page;
        let per_block = NonZeroUsize::new(rows)
            .ok_or_else(|| Error::shape("rows of a page", "at least 1", rows))?;
        if row_stride < dim {
            return Err(Error::shape("stride of rows", format!("at least {dim}"), row_stride));
        }
        // Nothing need follow the last row.
        let extent = |rows: usize| (rows - 1).saturating_mul(row_stride).saturating_add(dim);
        if stride < extent(rows) {
            let expected = format!("at least {} (the elements of {rows} rows)", extent(rows));
            return Err(Error::shape("stride of pages", expected, stride));
        }
        let pages = len.div_ceil(rows);
        if table.len() < pages {
            let expected = format!("at least {pages} pages ({len} rows of {rows} in a page)");
            return Err(Error::shape("block table", expected, table.len()));
        }
        for (place, &page) in table[..pages].iter().enumerate() {
            let held = extent(rows.min(len - place * rows));
            let end = (page as usize).saturating_mul(stride).saturating_add(held);
            if end > pool.len() {
                let expected = format!("a page within the pool's {} elements", pool.len());
                return Err(Error::shape(format!("block table[{place}]"), expected, page));
            }
        }
        let layout = BlockLayout::new(len, dim, row_stride, per_block);
        Ok(Self { rows: T::rows(Blocks::Paged { pool, table, stride }), layout })
    }

    /// Restricts each row to a range of its elements: `[len, range.len()]`.
    ///
    /// # Panics
    /// Panics if the range is not within `0..dim`.
    #[must_use]
    pub fn columns(mut self, range: Range<usize>) -> Self {
        let dim = self.layout.dim;
        assert!(range.start <= range.end && range.end <= dim, "{range:?} of {dim} elements");
        self.layout.zeros *= usize::from(range.end == dim);
        self.layout.column += range.start;
        self.layout.dim = range.len();
        self
    }

    /// Declares that `zeros` zeros follow each row before the next row begins. Kernels that process
    /// many numbers at a time may read these zeros along with the row. The elements are not checked
    /// to be 0.
    ///
    /// # Panics
    /// Panics if there are fewer than `zeros` elements between the rows.
    #[must_use]
    pub fn padded(mut self, zeros: usize) -> Self {
        let BlockLayout { column, dim, stride, .. } = self.layout;
        assert!(zeros <= stride - column - dim, "{zeros} zeros behind {dim} of {stride} elements");
        self.layout.zeros = zeros;
        self
    }

    /// Adds the scales of rows of 8-bit integers, `[len]`: elements of a row are products of its
    /// integers and its scale. O(len).
    ///
    /// # Errors
    /// Returns [`Error::Shape`] if the rows are not of integers, or if there is not one scale per
    /// row that is finite and not negative.
    pub fn with_scales(self, scales: &'a [f32]) -> Result<Self> {
        let StoredRows::Q8(rows, _) = self.rows else {
            return Err(Error::shape("scales", "none for rows of floats", scales.len()));
        };
        if scales.len() != self.len() {
            let expected = format!("{}, one per row", self.len());
            return Err(Error::shape("scales", expected, scales.len()));
        }
        // The comparison is false for NaN.
        let is_valid = |scale: &f32| (0.0..=MAX_MAGNITUDE).contains(scale);
        if let Some(i) = scales.iter().position(|scale| !is_valid(scale)) {
            let expected = format!("a number from 0 to {MAX_MAGNITUDE:e}");
            return Err(Error::shape(format!("scales[{i}]"), expected, scales[i]));
        }
        Ok(Self { rows: StoredRows::Q8(rows, RowScales::Slice(scales)), ..self })
    }

    /// Declares that each stored row of 8-bit integers contains its scale: an f32 in the machine's
    /// byte order at byte `place` of the row. The scales are not checked.
    ///
    /// # Panics
    /// Panics if the rows are not of integers, or if stored rows end before byte `place + 4`.
    #[must_use]
    pub fn with_scales_in_rows(self, place: usize) -> Self {
        let StoredRows::Q8(rows, _) = self.rows else { panic!("scales of rows of floats") };
        let stride = self.layout.stride;
        assert!(place + SCALE_BYTES <= stride, "a scale at byte {place} of {stride}");
        Self { rows: StoredRows::Q8(rows, RowScales::InRow(place)), ..self }
    }

    /// Checks that rows of 8-bit integers have scales.
    ///
    /// # Errors
    /// Returns [`Error::Shape`] that names the scales of the rows called `name`.
    pub fn check_scales(&self, name: &str) -> Result<()> {
        if matches!(self.rows, StoredRows::Q8(_, RowScales::Unscaled)) {
            let expected = "one per row (`Tokens::with_scales`)";
            return Err(Error::shape(format!("scales of the {name}"), expected, "none"));
        }
        Ok(())
    }

    /// Memory and layout of the rows, for kernels that read them in place.
    pub fn stored(&self) -> (StoredRows<'a>, BlockLayout) {
        (self.rows, self.layout)
    }

    /// Restricts the rows to a range of tokens: `[range.len(), dim]`.
    ///
    /// # Panics
    /// Panics if the range is not within `0..len`.
    #[must_use]
    pub fn range(mut self, range: Range<usize>) -> Self {
        let len = self.layout.len;
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} rows");
        self.layout.first += range.start;
        self.layout.len = range.len();
        if let StoredRows::Q8(_, RowScales::Slice(scales)) = &mut self.rows {
            *scales = &scales[range];
        }
        self
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.layout.len
    }

    /// Returns true if there is no row.
    pub fn is_empty(&self) -> bool {
        self.layout.len == 0
    }

    /// Number of elements of a row.
    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// Dot product of row `token` and `query` `[dim]`, in f32.
    pub fn dot(&self, token: usize, query: &[f32]) -> f32 {
        match self.rows {
            StoredRows::F32(rows) => dot(self.layout.row(rows, token), query),
            StoredRows::F16(rows) => dot(self.layout.row(rows, token), query),
            StoredRows::Bf16(rows) => dot(self.layout.row(rows, token), query),
            StoredRows::Q8(rows, scales) => {
                let product = dot(self.layout.row(rows, token), query);
                product * scales.scale(&self.layout, rows, token)
            }
        }
    }

    /// Computes the dot products of a range of rows with queries `[queries · dim]`, into `out`
    /// `[queries, range.len()]`. Each row is read once for every four queries.
    ///
    /// # Panics
    /// Panics if `dim` is 0, if the queries are not a multiple of `dim` numbers, or if `out` does
    /// not have the expected size.
    pub fn dots(&self, range: Range<usize>, queries: &[f32], out: &mut [f32]) {
        match self.rows {
            StoredRows::F32(rows) => dots(&self.layout, rows, &range, queries, out),
            StoredRows::F16(rows) => dots(&self.layout, rows, &range, queries, out),
            StoredRows::Bf16(rows) => dots(&self.layout, rows, &range, queries, out),
            StoredRows::Q8(rows, scales) => {
                dots(&self.layout, rows, &range, queries, out);
                if range.is_empty() {
                    return;
                }
                let scale = |token| scales.scale(&self.layout, rows, token);
                let scales: Vec<f32> = range.clone().map(scale).collect();
                for products in out.chunks_exact_mut(range.len()) {
                    multiply(products, &scales);
                }
            }
        }
    }

    /// Computes the dot products of some rows with `query` `[dim]`, into `out` `[tokens]`.
    ///
    /// # Panics
    /// Panics if a row does not exist, or if `out` does not have the length of `tokens`.
    pub fn dots_of(&self, tokens: &[usize], query: &[f32], out: &mut [f32]) {
        match self.rows {
            StoredRows::F32(rows) => dots_of(&self.layout, rows, tokens, query, out),
            StoredRows::F16(rows) => dots_of(&self.layout, rows, tokens, query, out),
            StoredRows::Bf16(rows) => dots_of(&self.layout, rows, tokens, query, out),
            StoredRows::Q8(rows, scales) => {
                dots_of(&self.layout, rows, tokens, query, out);
                for (product, &token) in out.iter_mut().zip(tokens) {
                    *product *= scales.scale(&self.layout, rows, token);
                }
            }
        }
    }

    /// Copies row `token` into `out` `[dim]`.
    pub fn copy_row(&self, token: usize, out: &mut [f32]) {
        match self.rows {
            StoredRows::F32(rows) => f32::widen(self.layout.row(rows, token), out),
            StoredRows::F16(rows) => f16::widen(self.layout.row(rows, token), out),
            StoredRows::Bf16(rows) => bf16::widen(self.layout.row(rows, token), out),
            StoredRows::Q8(rows, scales) => {
                i8::widen(self.layout.row(rows, token), out);
                let scale = scales.scale(&self.layout, rows, token);
                for x in out {
                    *x *= scale;
                }
            }
        }
    }

    /// Copies a range of rows into an array `[range.len(), dim]`.
    pub fn to_array(&self, range: Range<usize>) -> Array2<f32> {
        self.gather(range)
    }

    /// Copies some rows into an array `[tokens, dim]`, in the order of `tokens`.
    pub fn gather(&self, tokens: impl ExactSizeIterator<Item = usize>) -> Array2<f32> {
        let dim = self.layout.dim;
        let mut data = vec![0.0; tokens.len() * dim];
        let rows = tokens.len();
        for (token, out) in tokens.zip(data.chunks_exact_mut(dim)) {
            self.copy_row(token, out);
        }
        Array2::from_shape_vec((rows, dim), data).expect("the array has rows · dim numbers")
    }
}

/// Multiplies each product by the scale of its row.
fn multiply(products: &mut [f32], scales: &[f32]) {
    for (product, scale) in products.iter_mut().zip(scales) {
        *product *= scale;
    }
}

#[cfg(test)]
mod tests;
