//! Pointers to rows in order, in strips whose vectors have equal distances in memory.

use super::blocks::{FAR, NEAR, Pointers, RowBlock, RowSource, Vector};
use super::rows::{BLOCK_ROWS, KvRows, TokenSpan, Vectors};
use crate::cpu::simd::{Simd, SimdElement};

/// Keys and values of a range of tokens, which are found once for each block of the storage.
pub(crate) struct RowsInOrder<'a, E> {
    rows: &'a KvRows<'a, E>,
    /// First token.
    from: usize,
    /// Last token plus one.
    to: usize,
    /// Number of rows in a strip.
    strip_rows: usize,
    keys: Runs<'a, E>,
    values: Runs<'a, E>,
}

/// Vectors of the strip that is multiplied, and of the rows that are prefetched meanwhile.
struct Runs<'a, E> {
    vectors: &'a Vectors<'a, E>,
    here: Run<E>,
    far: Run<E>,
}

/// Successive vectors at equal distances.
struct Run<E> {
    begin: *const E,
    len: usize,
}

/// Pointers to vectors at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct EvenPointers<E> {
    here: *const E,
    far: *const E,
    /// Distance in elements.
    stride: usize,
}

impl<E: Copy> Pointers<E> for EvenPointers<E> {
    const SCATTERED: bool = false;

    #[inline(always)]
    unsafe fn vector(self, row: usize) -> Vector<E> {
        Vector {
            here: self.here.wrapping_add(row * self.stride),
            near: self.here.wrapping_add((row + NEAR) * self.stride),
            far: self.far.wrapping_add(row * self.stride),
        }
    }

    #[inline(always)]
    unsafe fn skip(self, first: usize) -> Self {
        let Vector { here, far, .. } = self.vector(first);
        Self { here, far, ..self }
    }
}

impl<E: Copy> Run<E> {
    const EMPTY: Self = Self { begin: std::ptr::null(), len: 0 };

    /// Takes the vectors of `len` tokens from `token` on.
    #[inline(always)]
    unsafe fn take(&mut self, vectors: &Vectors<'_, E>, token: usize, len: usize) -> *const E {
        if self.len == 0 {
            (self.begin, self.len) = vectors.find_run(token);
        }
        let begin = self.begin;
        self.begin = begin.wrapping_add(len * vectors.stride());
        self.len -= len;
        begin
    }
}

impl<'a, E: Copy> Runs<'a, E> {
    fn new(vectors: &'a Vectors<'a, E>) -> Self {
        Self { vectors, here: Run::EMPTY, far: Run::EMPTY }
    }

    /// Takes the vectors of `len` tokens from `token` on. Rows before `end` are prefetched.
    #[inline(always)]
    unsafe fn take(&mut self, token: usize, len: usize, end: usize) -> EvenPointers<E> {
        let here = self.here.take(self.vectors, token, len);
        let far =
            if token + FAR < end { self.far.take(self.vectors, token + FAR, len) } else { here };
        EvenPointers { here, far, stride: self.vectors.stride() }
    }
}

impl<'a, E: SimdElement> RowsInOrder<'a, E> {
    /// Creates rows of a range of tokens, without the last few, which are less than
    /// [`BLOCK_ROWS`]. Returns `None` for a list, and if runs in memory are shorter: blocks are the
    /// same for every storage, and so are the bits of a result.
    ///
    /// # Safety
    /// All tokens must be in `rows`.
    #[inline(always)]
    pub(crate) unsafe fn new(
        rows: &'a KvRows<'a, E>,
        tokens: TokenSpan<'a>,
        strip_rows: usize,
    ) -> Option<Self> {
        let TokenSpan::Range(from, to) = tokens else { return None };
        let (keys, values) = (rows.keys(), rows.values());
        let run_rows = |vectors: &Vectors<'_, E>| vectors.run_rows(from, strip_rows);
        let strip_rows = run_rows(keys).min(run_rows(values));
        let to = to - (to - from) % BLOCK_ROWS;
        let (keys, values) = (Runs::new(keys), Runs::new(values));
        let long = strip_rows >= BLOCK_ROWS && to > from;
        long.then_some(Self { rows, from, to, strip_rows, keys, values })
    }

    /// Number of rows.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.to - self.from
    }

    /// Prefetches the scales of `count` tokens; the loops over vectors do not.
    #[inline(always)]
    unsafe fn prefetch_scales<S: Simd>(&self, token: usize, count: usize) {
        if E::SCALED {
            for token in token..self.to.min(token + count) {
                self.rows.prefetch_scales::<S>(token, self.find(token));
            }
        }
    }

    /// Key and value of a token.
    #[inline(always)]
    unsafe fn find(&self, token: usize) -> (*const E, *const E) {
        (self.rows.keys().find_run(token).0, self.rows.values().find_run(token).0)
    }
}

impl<'a, E: SimdElement> RowSource<'a, E> for RowsInOrder<'a, E> {
    type Pointers = EvenPointers<E>;

    #[inline(always)]
    fn strip_rows(&self) -> usize {
        self.strip_rows
    }

    #[inline(always)]
    unsafe fn prefetch_first<S: Simd>(&self) {
        for token in self.from..self.to.min(self.from + FAR) {
            self.rows.prefetch::<S>(token, self.find(token));
        }
    }

    #[inline(always)]
    unsafe fn strip<S: Simd>(&mut self, first: usize) -> RowBlock<'a, E, EvenPointers<E>> {
        let token = self.from + first;
        let len = self.strip_rows.min(self.to - token);
        self.prefetch_scales::<S>(token + FAR, len);
        RowBlock {
            rows: self.rows,
            tokens: TokenSpan::Range(token, token + len),
            keys: self.keys.take(token, len, self.to),
            values: self.values.take(token, len, self.to),
            first,
            len,
        }
    }
}
