//! Attention of a group of query heads over rows of one KV head. Each row is fetched once.
//!
//! Rows are processed in blocks that stay in the first-level cache: first all logits of a block,
//! then its weights, then the sums of its values. The loops over keys and over values prefetch the
//! cache lines of later rows: of rows far ahead into the second-level cache, and of the next few
//! rows into the first-level cache, which can have only few requests in flight. The same loops read
//! ranges and lists of rows. Logits are in base 2, `log2(e) q·k`, and capped if there is a cap.
//!
//! A tile has four query heads (or two, or one). The last tile is padded with zero queries.

mod gather;
mod products;
mod queries;
mod rounded;
mod rows;
mod sample_sums;
mod score;
mod spread;
mod squares;
mod value;

pub(crate) use gather::{GatheredRows, gather};
pub(crate) use products::{FourProducts, fours, products, weigh};
pub(crate) use queries::{TileQueries, vectors};
pub(crate) use rows::{AnyRows, KvRows, TokenSpan};
pub(crate) use sample_sums::SampleSums;
pub(crate) use spread::{LaggedSquares, SampleTokens, Spread, SpreadCentre, exp2, spread};
pub(crate) use squares::{HeadTerms, SampleValues, TermSums, square_terms};

use vattention_core::step::Scratch;

use rows::{BLOCK_ROWS, RowBlock, RowWindow};
use score::BlockKeys;
use value::{BlockValues, norm_block};

use super::simd::{CHUNK, LANES, Level, Simd, SimdElement, SimdKernel};

pub(crate) use super::simd::SimdLine;

/// A logit below all others.
const LEAST: f32 = f32::MIN;

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

/// Denominators `Σ 2^(logit − max)` and numerators `Σ 2^(logit − max) v` of a tile's heads, over
/// the rows so far. Maxima and denominators are aligned like lines: a load that crosses a cache
/// line would wait for the last store of the same numbers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TileSums {
    /// Largest logit of head `lane % H`.
    pub(crate) max: [f32; LANES],
    /// Partial sums of head `lane % H`.
    pub(crate) denominator: [f32; LANES],
    /// Numerators of the rows since the last [`fold`](Self::fold), `[H][value_chunks · CHUNK]`, in
    /// the lanes' order.
    pub(crate) numerator: Scratch<SimdLine>,
    /// Numerators of all earlier rows, in f64: a sum of thousands of similar numbers in f32 would
    /// lose more precision than the products do.
    pub(crate) folded: Scratch<f64>,
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

/// Output for single rows.
#[derive(Debug)]
pub(crate) struct PerRow<'a> {
    /// Logits without the weights, `[tiles · H][rows]`.
    pub(crate) logits: &'a mut [f32],
    /// Norms of the values, `[rows]`.
    pub(crate) norms: &'a mut [f32],
}

impl TileSums {
    pub(crate) fn new(heads: usize, value_chunks: usize) -> Self {
        let lines = heads * value_chunks * (CHUNK / LANES);
        let (mut numerator, mut folded) = (Scratch::new(lines), Scratch::new(lines * LANES));
        numerator.fill(SimdLine::default());
        folded.fill(0.0);
        Self { max: [LEAST; LANES], denominator: [0.0; LANES], numerator, folded }
    }

    /// Adds the numerator to `folded` and clears it.
    #[inline(always)]
    pub(crate) fn fold(&mut self) {
        let (folded, _) = self.folded.as_chunks_mut::<LANES>();
        for (folded, line) in folded.iter_mut().zip(&mut *self.numerator) {
            for (sum, number) in folded.iter_mut().zip(&line.0) {
                *sum += f64::from(*number);
            }
            line.0 = [0.0; LANES];
        }
    }

    /// Makes the sums relative to new maxima. It is called rarely: the maximum of `n` rows in
    /// random order rises about `ln n` times.
    #[inline(always)]
    fn raise_max<const H: usize>(&mut self, best: &[f32; LANES]) {
        let lines = self.numerator.len() / H;
        for head in 0..H {
            let lanes_of_head = || (head..LANES).step_by(H);
            let max = lanes_of_head().map(|lane| best[lane]).fold(LEAST, f32::max);
            if max == self.max[head] {
                continue;
            }
            if self.max[head] == LEAST {
                // There are no sums yet.
                lanes_of_head().for_each(|lane| self.max[lane] = max);
                continue;
            }
            let factor = (self.max[head] - max).exp2();
            for lane in lanes_of_head() {
                self.max[lane] = max;
                self.denominator[lane] *= factor;
            }
            for sum in &mut self.folded[head * lines * LANES..][..lines * LANES] {
                *sum *= f64::from(factor);
            }
            for line in &mut self.numerator[head * lines..][..lines] {
                line.0.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

/// Number of query heads per tile, for a group of `group` heads.
pub(crate) fn heads_per_tile(group: usize) -> usize {
    match group {
        1 => 1,
        2 => 2,
        _ => 4,
    }
}

/// Adds the rows of `pass` to the sums of its query heads. `heads` is the number of query heads in
/// a tile: 1, 2 or 4.
///
/// # Panics
/// If sizes do not match, or a token is not in `pass.rows`.
pub(crate) fn attend<E: SimdElement>(
    level: Level,
    heads: usize,
    pass: &Pass<'_, E>,
    sums: &mut [TileSums],
    per_row: Option<PerRow<'_>>,
) {
    pass.check(heads, sums, per_row.as_ref());
    // SAFETY: `check` checks the sizes of everything that the kernel reads and writes.
    unsafe {
        match heads {
            1 => level.run(AttendKernel::<'_, '_, E, 1> { pass, sums, per_row }),
            2 => level.run(AttendKernel::<'_, '_, E, 2> { pass, sums, per_row }),
            _ => level.run(AttendKernel::<'_, '_, E, 4> { pass, sums, per_row }),
        }
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

    fn check(&self, heads: usize, sums: &[TileSums], per_row: Option<&PerRow<'_>>) {
        let (rows, count) = (&self.rows, self.tokens.len());
        assert_eq!(self.check_tiles(heads), sums.len(), "query heads");
        for tile in sums {
            assert_eq!(tile.numerator.len(), heads * rows.value_chunks() * 2, "numerators");
        }
        assert!(self.log_weights.is_none_or(|weights| weights.len() == count), "weights");
        if let Some(per_row) = per_row {
            assert_eq!(per_row.logits.len(), count * sums.len() * heads, "logits");
            assert_eq!(per_row.norms.len(), count, "norms");
        }
    }
}

struct AttendKernel<'a, 'p, E, const H: usize> {
    pass: &'a Pass<'p, E>,
    sums: &'a mut [TileSums],
    per_row: Option<PerRow<'a>>,
}

impl<E: SimdElement, const H: usize> SimdKernel for AttendKernel<'_, '_, E, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Pass { rows, tokens, .. } = self.pass;
        let count = tokens.len();
        if count == 0 {
            return;
        }
        let mut window = RowWindow::new(rows, *tokens);
        window.prefetch_first::<S>();
        for first in (0..count).step_by(rows.block_rows::<S, H>()) {
            let block = window.block::<S>(first, rows.block_rows::<S, H>());
            self.add_block::<S>(&block);
            if first / FOLD < (first + block.len) / FOLD {
                // A loop, because `for_each` is not inlined.
                for sums in &mut *self.sums {
                    sums.fold();
                }
            }
        }
    }
}

impl<E: SimdElement, const H: usize> AttendKernel<'_, '_, E, H> {
    #[inline(always)]
    unsafe fn add_block<S: Simd>(&mut self, block: &RowBlock<'_, '_, E>) {
        run_on_tiles::<S, E, _, H>(self, self.pass.query_heads, block);
        if let Some(per_row) = &mut self.per_row {
            let mut norms = [0.0; BLOCK_ROWS];
            norm_block::<S, E>(block, &mut norms);
            per_row.norms[block.first..][..block.len].copy_from_slice(&norms[..block.len]);
        }
    }
}

impl<E: SimdElement, const H: usize> TileKernel<E> for AttendKernel<'_, '_, E, H> {
    /// Adds a block to the sums of a tile.
    #[inline(always)]
    unsafe fn run<S: Simd, const N: usize, const AHEAD: bool>(
        &mut self,
        block: &RowBlock<'_, '_, E>,
        tile: usize,
    ) {
        let Self { pass, sums, per_row } = self;
        let sums = &mut sums[tile];
        let mut scores = [SimdLine([LEAST; LANES]); BLOCK_LINES];
        let used = score_tile::<E, S, H, N, AHEAD>(pass, block, tile, &mut scores);
        if let Some(per_row) = per_row {
            record_logits::<E, H>(block, tile, used, per_row.logits);
        }
        if let Some(weights) = pass.log_weights {
            add_weights::<H>(used, &weights[block.first..]);
        }
        weigh_block::<S, H>(used, sums);
        BlockValues::<E, N, AHEAD> { block }.add::<S, H>(used, sums);
    }
}

/// Computation on one tile of a block, compiled for the number `N` of its query heads. With
/// `AHEAD`, it prefetches later rows.
trait TileKernel<E> {
    unsafe fn run<S: Simd, const N: usize, const AHEAD: bool>(
        &mut self,
        block: &RowBlock<'_, '_, E>,
        tile: usize,
    );
}

/// Runs a kernel on the tiles of `H` query heads each, of which the last may have three of four.
/// The first tile prefetches rows for all tiles.
#[inline(always)]
unsafe fn run_on_tiles<S: Simd, E, K: TileKernel<E>, const H: usize>(
    kernel: &mut K,
    query_heads: usize,
    block: &RowBlock<'_, '_, E>,
) {
    for tile in 0..query_heads.div_ceil(H) {
        let three = query_heads == tile * H + 3;
        // Each branch is a copy of the kernel: only groups of four or more heads need several.
        if const { H < 4 } {
            kernel.run::<S, H, true>(block, tile);
        } else if tile > 0 && S::PREFETCHES {
            if three {
                kernel.run::<S, 3, false>(block, tile);
            } else {
                kernel.run::<S, H, false>(block, tile);
            }
        } else if three {
            kernel.run::<S, 3, true>(block, tile);
        } else {
            kernel.run::<S, H, true>(block, tile);
        }
    }
}

/// Computes the logits of a block for a tile with `N` query heads. Returns the part of `scores`
/// that is used, `[rows][H]`.
#[inline(always)]
unsafe fn score_tile<
    's,
    E: SimdElement,
    S: Simd,
    const H: usize,
    const N: usize,
    const AHEAD: bool,
>(
    pass: &Pass<'_, E>,
    block: &RowBlock<'_, '_, E>,
    tile: usize,
    scores: &'s mut [SimdLine; BLOCK_LINES],
) -> &'s mut [SimdLine] {
    let used = &mut scores[..(block.len * H).div_ceil(LANES)];
    let Pass { queries, soft_cap, .. } = *pass;
    BlockKeys::<E, N, AHEAD> { block, queries, tile, soft_cap }.score::<S, H>(used);
    used
}

/// Copies the logits of a block for a tile's heads, `[rows][H]`, to the logits of all heads,
/// `[heads][rows]`.
#[inline(always)]
fn record_logits<E: SimdElement, const H: usize>(
    block: &RowBlock<'_, '_, E>,
    tile: usize,
    scores: &mut [SimdLine],
    logits: &mut [f32],
) {
    let mut heads = logits.chunks_exact_mut(block.pass_len()).skip(tile * H);
    let heads: [&mut [f32]; H] = std::array::from_fn(|_| {
        let head = heads.next().expect("a tile has H heads");
        &mut head[block.first..][..block.len]
    });
    let rows = flat(scores).as_chunks::<H>().0;
    for (row, logits) in rows.iter().enumerate().take(block.len) {
        for head in 0..H {
            heads[head][row] = logits[head];
        }
    }
}

/// Adds the base-2 logarithms of the rows' weights to their logits `[rows][H]`.
#[inline(always)]
fn add_weights<const H: usize>(scores: &mut [SimdLine], weights: &[f32]) {
    let rows = flat(scores).chunks_exact_mut(H);
    for (logits, weight) in rows.zip(weights) {
        for logit in logits {
            *logit += weight;
        }
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

/// Turns logits into weights `2^(logit − max)` and adds them to the denominators.
#[inline(always)]
unsafe fn weigh_block<S: Simd, const H: usize>(scores: &mut [SimdLine], sums: &mut TileSums) {
    let mut best = S::load(sums.max.as_ptr());
    for line in &*scores {
        best = S::max(best, S::load(line.0.as_ptr()));
    }
    if S::any_above(best, S::load(sums.max.as_ptr())) {
        let mut lanes = [0.0; LANES];
        S::store(lanes.as_mut_ptr(), best);
        sums.raise_max::<H>(&lanes);
    }
    let max = S::load(sums.max.as_ptr());
    let mut denominator = S::load(sums.denominator.as_ptr());
    for line in scores {
        let weights = S::exp2(S::sub(S::load(line.0.as_ptr()), max));
        denominator = S::add(denominator, weights);
        S::store(line.0.as_mut_ptr(), weights);
    }
    S::store(sums.denominator.as_mut_ptr(), denominator);
}
