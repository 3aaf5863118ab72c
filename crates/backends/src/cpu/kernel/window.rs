//! Pointers to the rows of a pass in any order.

use super::blocks::{FAR, NEAR, Pointers, RowBlock, RowSource, Vector};
use super::rows::{KvRows, TokenSpan};
use crate::cpu::simd::{Simd, SimdElement};

/// Number of rows in a window. [`FAR`] and the number of rows in a strip divide it, so that the
/// pointers of a strip are contiguous.
const RING: usize = 128;

/// Pointers to the vectors of a window, a ring. The first pointers are repeated at the end, so that
/// a strip and the [`NEAR`] rows after it are contiguous.
type Ring<E> = [*const E; RING + NEAR];

/// Pointers to keys and values of a pass, from the strip that is multiplied to the rows that are
/// prefetched meanwhile. The last row of the pass is repeated past its end.
pub(crate) struct RowWindow<'a, E> {
    rows: &'a KvRows<'a, E>,
    /// Tokens of the pass from the position `begin` on.
    tokens: TokenSpan<'a>,
    begin: usize,
    /// Number of rows in a strip.
    strip_rows: usize,
    keys: Ring<E>,
    values: Ring<E>,
}

/// Pointers to the vectors of a strip in a ring. Rows of a strip are contiguous in the ring, and so
/// are those that are [`FAR`] ahead.
#[derive(Clone, Copy)]
pub(crate) struct RingPointers<E> {
    ring: *const Ring<E>,
    here: usize,
    far: usize,
}

impl<E> RingPointers<E> {
    /// Pointers to the vectors from the position `first` on.
    #[inline(always)]
    fn new(ring: &Ring<E>, first: usize) -> Self {
        Self { ring, here: first % RING, far: (first + FAR) % RING }
    }
}

impl<E: Copy> Pointers<E> for RingPointers<E> {
    const SCATTERED: bool = true;

    #[inline(always)]
    unsafe fn vector(self, row: usize) -> Vector<E> {
        let ring = self.ring.cast::<*const E>();
        Vector {
            here: *ring.add(self.here + row),
            near: *ring.add(self.here + row + NEAR),
            far: *ring.add(self.far + row),
        }
    }

    #[inline(always)]
    unsafe fn skip(self, first: usize) -> Self {
        Self { here: self.here + first, far: self.far + first, ..self }
    }
}

impl<'a, E: SimdElement> RowWindow<'a, E> {
    /// Creates a window on the rows of a pass from the position `begin` on.
    ///
    /// # Safety
    /// There must be at least one row, and all tokens must be in `rows`.
    #[inline(always)]
    pub(crate) unsafe fn new(
        rows: &'a KvRows<'a, E>,
        tokens: TokenSpan<'a>,
        begin: usize,
        strip_rows: usize,
    ) -> Self {
        let tokens = tokens.part(begin, tokens.len());
        let nothing = [std::ptr::null(); RING + NEAR];
        let mut window = Self { rows, tokens, begin, strip_rows, keys: nothing, values: nothing };
        window.find(0, FAR);
        window
    }

    /// Finds `count` rows from `first` on: one or more whole strips.
    #[inline(always)]
    unsafe fn find(&mut self, first: usize, count: usize) {
        let places = first % RING..first % RING + count;
        let left = self.tokens.len().saturating_sub(first).min(count);
        let last = self.tokens.token(self.tokens.len() - 1);
        let columns = [(self.rows.keys(), &mut self.keys), (self.rows.values(), &mut self.values)];
        for (vectors, out) in columns {
            let (rows, past_the_end) = out[places.clone()].split_at_mut(left);
            match self.tokens {
                TokenSpan::Range(from, _) => vectors.find_range(from + first, rows),
                TokenSpan::List(list) => vectors.find(&list[list.len().min(first)..], rows),
            }
            if let Some((row, others)) = past_the_end.split_first_mut() {
                *row = vectors.find_run(last).0;
                others.fill(*row);
            }
        }
        if first.is_multiple_of(RING) {
            self.keys.copy_within(..NEAR, RING);
            self.values.copy_within(..NEAR, RING);
        }
    }

    /// Prefetches the scales of `count` rows from `first` on; the loops over vectors do not.
    #[inline(always)]
    unsafe fn prefetch_scales<S: Simd>(&self, first: usize, count: usize) {
        if E::SCALED {
            for place in first..(first + count).min(self.tokens.len()) {
                let vectors = (self.keys[place % RING], self.values[place % RING]);
                self.rows.prefetch_scales::<S>(self.tokens.token(place), vectors);
            }
        }
    }
}

impl<'a, E: SimdElement> RowSource<'a, E> for RowWindow<'a, E> {
    type Pointers = RingPointers<E>;

    #[inline(always)]
    fn strip_rows(&self) -> usize {
        self.strip_rows
    }

    #[inline(always)]
    unsafe fn prefetch_first<S: Simd>(&self) {
        for row in 0..FAR.min(self.tokens.len()) {
            self.rows.prefetch::<S>(self.tokens.token(row), (self.keys[row], self.values[row]));
        }
    }

    #[inline(always)]
    unsafe fn strip<S: Simd>(&mut self, first: usize) -> RowBlock<'a, E, RingPointers<E>> {
        let (place, len) = (first - self.begin, self.strip_rows);
        self.find(place + FAR, len);
        self.prefetch_scales::<S>(place + FAR, len);
        let tokens = self.tokens.part(place, len);
        RowBlock {
            rows: self.rows,
            tokens,
            keys: RingPointers::new(&self.keys, place),
            values: RingPointers::new(&self.values, place),
            first,
            len: tokens.len(),
        }
    }
}
