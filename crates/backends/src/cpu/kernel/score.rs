//! Logits: products of keys and queries.

use vattention_core::step::{TANH, TANH_LIMIT};

use super::blocks::{Pointers, RowBlock, Vector};
use super::{LANES, LEAST, Pass, SimdLine, TileQueries, flat, multiply_lines};
use crate::cpu::simd::{CHUNK, Simd, SimdElement};

/// Keys of a block, and the queries of a tile, of which the first `N` are used. With `AHEAD`, later
/// rows are prefetched.
#[derive(Clone, Copy)]
pub(crate) struct BlockKeys<'b, E, P, const N: usize, const C: usize, const AHEAD: bool> {
    block: &'b RowBlock<'b, E, P>,
    queries: &'b TileQueries,
    tile: usize,
    /// Soft cap of the logits, in base 2.
    soft_cap: Option<f32>,
}

impl<'b, E, P, const N: usize, const C: usize, const AHEAD: bool> BlockKeys<'b, E, P, N, C, AHEAD>
where
    E: SimdElement,
    P: Pointers<E>,
{
    /// Creates the keys of a block, and the queries of a tile of the pass.
    #[inline(always)]
    pub(crate) fn new(pass: &'b Pass<'_, E>, block: &'b RowBlock<'b, E, P>, tile: usize) -> Self {
        Self { block, queries: pass.queries, tile, soft_cap: pass.soft_cap }
    }

    #[inline(always)]
    fn chunks(&self) -> usize {
        if C > 0 { C } else { self.block.rows.key_chunks() }
    }

    /// Computes the logits of the block, `[rows][H]`; logits past its end are [`LEAST`].
    #[inline(always)]
    pub(crate) unsafe fn score<S: Simd, const H: usize>(&self, scores: &mut [SimdLine]) {
        let before = self.tile * H * self.chunks();
        match self.queries {
            TileQueries::Floats(queries) => {
                let queries = queries.as_ptr().add(before * CHUNK / LANES).cast();
                self.multiply::<S, H>(queries, scores);
            }
            TileQueries::Integers { queries, scales } => {
                // The scales are loaded as lines after the products, when they have left the store
                // buffer.
                let key_scales = self.block.key_scales::<H>();
                self.multiply_integers::<S, H>(queries.as_ptr().add(before).cast(), scores);
                multiply_lines::<S>(scores, &key_scales);
                multiply_lines::<S>(scores, std::iter::repeat(&scales[self.tile]));
            }
        }
        if let Some(cap) = self.soft_cap {
            cap_lines::<S>(scores, cap);
        }
        flat(scores)[self.block.len * H..].fill(LEAST);
    }

    /// Computes products with queries `[H][key_chunks · CHUNK]`.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const H: usize>(
        &self,
        queries: *const f32,
        scores: &mut [SimdLine],
    ) {
        for (i, line) in scores.iter_mut().enumerate() {
            let mut sums = [S::no_sums(); LANES];
            let first = i * (LANES / H);
            match (H, S::WIDE) {
                (2 | 4, true) => self.dots_in::<S, H, 4>(queries, first, &mut sums),
                (_, true) => self.dots_in::<S, H, 8>(queries, first, &mut sums),
                (4, false) => self.dots_in::<S, H, 2>(queries, first, &mut sums),
                (_, false) => self.dots_in::<S, H, 4>(queries, first, &mut sums),
            }
            S::store(line.0.as_mut_ptr(), S::sums(&sums));
        }
    }

    /// Computes sixteen products of the rows from `first` on with the queries, `R` rows at a time.
    #[inline(always)]
    unsafe fn dots_in<S: Simd, const H: usize, const R: usize>(
        &self,
        queries: *const f32,
        first: usize,
        sums: &mut [S::D; LANES],
    ) {
        for part in (0..LANES / H).step_by(R) {
            // The compiler must not merge the loops of different rows: registers are too few.
            let row = if S::WIDE { first + part } else { std::hint::black_box(first + part) };
            self.dots::<S, H, R>(queries, row, sums.as_mut_ptr().add(part * H));
        }
    }

    /// Computes the products of `R` rows, `[R][H]`: at most sixteen with AVX-512 and eight
    /// otherwise, so that sums stay in registers.
    #[inline(always)]
    unsafe fn dots<S: Simd, const H: usize, const R: usize>(
        &self,
        queries: *const f32,
        first: usize,
        out: *mut S::D,
    ) {
        let chunks = self.chunks();
        let keys = self.block.keys::<R>(first);
        let mut sums = [[S::no_sums(); N]; R];
        for offset in (0..chunks * CHUNK).step_by(CHUNK) {
            let queries = queries.add(offset);
            if S::WIDE || N <= 2 {
                for (key, sums) in keys.iter().zip(&mut sums) {
                    let (low, high) = Self::load_key::<S>(key, offset);
                    for (head, sum) in sums.iter_mut().enumerate() {
                        let query = load_query::<S>(queries.add(head * chunks * CHUNK));
                        *sum = S::fold(high, query.1, S::fold(low, query.0, *sum));
                    }
                }
            } else {
                // Each query is loaded once for all rows.
                let mut rows = [(S::splat(0.0), S::splat(0.0)); R];
                for (key, row) in keys.iter().zip(&mut rows) {
                    *row = Self::load_key::<S>(key, offset);
                }
                for head in 0..N {
                    let query = load_query::<S>(queries.add(head * chunks * CHUNK));
                    for (row, sums) in rows.iter().zip(&mut sums) {
                        sums[head] = S::fold(row.1, query.1, S::fold(row.0, query.0, sums[head]));
                    }
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (head, sum) in sums.iter().enumerate() {
                *out.add(row * H + head) = *sum;
            }
        }
    }

    /// Loads a chunk of a key.
    #[inline(always)]
    unsafe fn load_key<S: Simd>(key: &Vector<E>, offset: usize) -> (S::F, S::F) {
        if AHEAD {
            key.prefetch::<S>(offset, RowBlock::<E, P>::prefetches_near::<C>());
        }
        E::widen::<S>(key.here.add(offset))
    }

    /// Computes products of integers, without scales, with queries `[key_chunks][H]` of [`LANES`]
    /// pairs.
    #[inline(always)]
    unsafe fn multiply_integers<S: Simd, const H: usize>(
        &self,
        queries: *const i32,
        scores: &mut [SimdLine],
    ) {
        for (i, line) in scores.iter_mut().enumerate() {
            let mut sums = [S::no_int_sums(); LANES];
            let first = i * (LANES / H);
            match (H, S::WIDE) {
                (4, true) => self.integer_dots_in::<S, H, 4>(queries, first, &mut sums),
                (2, true) => self.integer_dots_in::<S, H, 8>(queries, first, &mut sums),
                (_, true) => self.integer_dots_in::<S, H, 16>(queries, first, &mut sums),
                (4, false) => self.integer_dots_in::<S, H, 2>(queries, first, &mut sums),
                (_, false) => self.integer_dots_in::<S, H, 4>(queries, first, &mut sums),
            }
            S::store(line.0.as_mut_ptr(), S::int_sums(&sums));
        }
    }

    /// Computes sixteen products of integers, like [`dots_in`](Self::dots_in).
    #[inline(always)]
    unsafe fn integer_dots_in<S: Simd, const H: usize, const R: usize>(
        &self,
        queries: *const i32,
        first: usize,
        sums: &mut [S::R; LANES],
    ) {
        for part in (0..LANES / H).step_by(R) {
            let row = if S::WIDE { first + part } else { std::hint::black_box(first + part) };
            self.integer_dots::<S, H, R>(queries, row, sums.as_mut_ptr().add(part * H));
        }
    }

    /// Computes the products of `R` rows, `[R][H]`, so few that sums stay in registers.
    #[inline(always)]
    unsafe fn integer_dots<S: Simd, const H: usize, const R: usize>(
        &self,
        queries: *const i32,
        first: usize,
        out: *mut S::R,
    ) {
        let keys = self.block.keys::<R>(first);
        let mut sums = [[S::no_int_sums(); N]; R];
        for chunk in 0..self.chunks() {
            let mut pairs = [S::splat_int(0); R];
            for (key, pairs) in keys.iter().zip(&mut pairs) {
                if AHEAD {
                    key.prefetch::<S>(chunk * CHUNK, true);
                }
                *pairs = S::pairs_in_row(E::integers(key.here.add(chunk * CHUNK)));
            }
            for head in 0..N {
                let query = S::load_ints(queries.add((chunk * H + head) * LANES));
                for (pairs, sums) in pairs.iter().zip(&mut sums) {
                    sums[head] = S::fold_pairs(*pairs, query, sums[head]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (head, sum) in sums.iter().enumerate() {
                *out.add(row * H + head) = *sum;
            }
        }
    }
}

/// Loads a chunk of a query.
#[inline(always)]
unsafe fn load_query<S: Simd>(query: *const f32) -> (S::F, S::F) {
    (S::load(query), S::load(query.add(LANES)))
}

/// Caps logits. The loop is within the branch for a cap, so that blocks without one do not divide
/// by it.
#[inline(always)]
unsafe fn cap_lines<S: Simd>(lines: &mut [SimdLine], cap: f32) {
    for line in lines {
        let logits = cap_logits::<S>(S::load(line.0.as_ptr()), cap);
        S::store(line.0.as_mut_ptr(), logits);
    }
}

/// `cap · tanh(logit / cap)` of sixteen logits, by the polynomials of
/// [`vattention_core::step::TANH`].
#[inline(always)]
unsafe fn cap_logits<S: Simd>(logits: S::F, cap: f32) -> S::F {
    let limit = S::splat(TANH_LIMIT);
    let x = S::mul(logits, S::splat(1.0 / cap));
    let x = S::max(S::min(x, limit), S::splat(-TANH_LIMIT));
    let square = S::mul(x, x);
    let [mut p, mut q] = [S::splat(TANH[0][0]), S::splat(TANH[1][0])];
    for (numerator, denominator) in TANH[0].into_iter().zip(TANH[1]).skip(1) {
        p = S::fma(p, square, S::splat(numerator));
        q = S::fma(q, square, S::splat(denominator));
    }
    S::mul(S::mul(x, S::div(p, q)), S::splat(cap))
}
