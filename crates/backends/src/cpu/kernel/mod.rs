//! Attention of a group of query heads over rows of one KV head. Each row is fetched once.
//!
//! Rows are found in strips and multiplied in blocks of a strip, for one tile of query heads after
//! the other: first all logits of a block, then its weights, then the sums of its values. The loops
//! over keys and over values prefetch the cache lines of later rows: of rows far ahead into the
//! second-level cache, and, if vectors are long, of the next few rows into the first-level cache,
//! which can have only few requests in flight. The same loops read ranges and lists of rows. Logits
//! are in base 2, `log2(e) q·k`, and capped if there is a cap.
//!
//! A tile has four query heads (or two, or one). The last tile is padded with zero queries.

mod attend;
mod blocks;
mod gather;
mod in_order;
mod products;
mod queries;
mod rounded;
mod rows;
mod sample_sums;
mod score;
mod spread;
mod squares;
mod tile_sums;
mod tiles;
mod value;
mod window;

pub(crate) use attend::{PerRow, attend};
pub(crate) use gather::{GatheredRows, gather};
pub(crate) use products::{FourProducts, fours, products, weigh};
pub(crate) use queries::{TileQueries, vectors};
pub(crate) use rows::{AnyRows, KvRows, TokenSpan};
pub(crate) use sample_sums::SampleSums;
pub(crate) use spread::{LaggedSquares, SampleTokens, Spread, SpreadCentre, exp2, spread};
pub(crate) use squares::{HeadTerms, SampleValues, TermSums, square_terms};
pub(crate) use tile_sums::TileSums;

use rows::BLOCK_ROWS;

use super::simd::{CHUNK, LANES, Simd, SimdElement};

pub(crate) use super::simd::SimdLine;

/// A logit below all others.
const LEAST: f32 = f32::MIN;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Rows to read, and queries to multiply them with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a, E> {
    pub(crate) rows: KvRows<'a, E>,
    pub(crate) tokens: TokenSpan<'a>,
    /// Base-2 logarithm of each token's weight; `None` if all weights are 1.
    pub(crate) log_weights: Option<&'a [f32]>,
    /// Queries, times `log2(e)`.
    pub(crate) queries: &'a TileQueries,
    /// Number of query heads; the last tile is padded with zero queries.
    pub(crate) query_heads: usize,
    /// Soft cap of the logits, in base 2.
    pub(crate) soft_cap: Option<f32>,
}

/// Largest number of lines of a block's logits, `[rows][H]`.
const BLOCK_LINES: usize = BLOCK_ROWS * 4 / LANES;

/// `1.5 · 2^23`, whose addition rounds a small number to an integer in the low bits.
const TO_LOW_BITS: f32 = 12_582_912.0;

/// Least largest number of a query, or of the weights of a block, that 16-bit integers represent
/// with all bits: reciprocals of scales stay finite.
const LEAST_PEAK: f32 = 1e-30;

/// Number of rows that are summed in f32 before their sums are added to sums in f64.
const FOLD: usize = 256;

/// Number of query heads per tile, for a group of `group` heads.
pub(crate) fn heads_per_tile(group: usize) -> usize {
    match group {
        1 => 1,
        2 => 2,
        _ => 4,
    }
}

impl<E: SimdElement> Pass<'_, E> {
    /// Checks the input that all kernels read, and returns the number of tiles.
    fn check_tiles(&self, heads: usize) -> usize {
        let (rows, tiles) = (&self.rows, self.query_heads.div_ceil(heads));
        assert!([1, 2, 4].contains(&heads), "{heads} heads in a tile");
        assert!(self.tokens.end() <= rows.len(), "a token past the end of the cache");
        assert!(self.queries.are_complete(tiles * heads, rows.key_chunks()), "queries");
        tiles
    }
}

/// Multiplies lines by other lines.
#[inline(always)]
unsafe fn multiply_lines<'f, S: Simd>(
    lines: &mut [SimdLine],
    factors: impl IntoIterator<Item = &'f SimdLine>,
) {
    for (line, factors) in lines.iter_mut().zip(factors) {
        let product = S::mul(S::load(line.0.as_ptr()), S::load(factors.0.as_ptr()));
        S::store(line.0.as_mut_ptr(), product);
    }
}

/// Loads sixteen numbers from `first` on, with `other` past the end.
#[inline(always)]
unsafe fn load<S: Simd>(numbers: &[f32], first: usize, other: f32) -> S::F {
    let numbers = &numbers[numbers.len().min(first)..];
    if numbers.len() >= LANES {
        return S::load(numbers.as_ptr());
    }
    let mut last = [other; LANES];
    last[..numbers.len()].copy_from_slice(numbers);
    S::load(last.as_ptr())
}

/// Combines the elements of a vector, half of them with the other half, until one is left.
#[inline(always)]
fn reduce(lanes: &[f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = *lanes;
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
    }
    lanes[0]
}

/// Elements of lines.
#[inline(always)]
fn flat(lines: &mut [SimdLine]) -> &mut [f32] {
    let len = lines.len() * LANES;
    // SAFETY: a line consists of sixteen elements without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
}
