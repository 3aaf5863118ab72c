//! Attention of a group of query heads over some rows of one KV head, each row fetched once.
//!
//! Rows are read in blocks that stay in the first-level cache: first all logits of a block, then its
//! weights, then its values. Both loops request rows ahead, one cache line with each [`CHUNK`] that
//! they multiply: far ahead for the second-level cache, and again, a few rows ahead, for the first,
//! which keeps few requests in flight. Rows of a list are read by the same loops. Logits are in
//! powers of two, `log2(e) q·k`.
//!
//! A tile holds four query heads (or two, or one). The last tile is filled with queries of zero.

mod gather;
mod products;
mod rows;
mod score;
mod spread;
mod value;

pub(crate) use gather::{GatheredRows, gather};
pub(crate) use products::{fours, products, weigh};
pub(crate) use rows::{AnyRows, Rows, Span};
pub(crate) use spread::{Centre, LaggedSquares, Spread, Tokens, exp2, spread};

use rows::{BLOCK_ROWS, Block, RowWindow};
use score::Keys;
use value::{Values, norm_block};

use super::simd::{CHUNK, Element, Kernel, LANES, Level, Simd};

pub(crate) use super::simd::Line;

/// A logit less than any other.
const LEAST: f32 = f32::MIN;

/// Which rows are read, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass<'a, E> {
    pub(crate) rows: Rows<'a, E>,
    pub(crate) tokens: Span<'a>,
    /// `log2` of each token's weight; absent: all weigh 1.
    pub(crate) log_weights: Option<&'a [f32]>,
    /// The queries, `[tiles][H][key_chunks · CHUNK]`, in the lanes' order, times `log2(e)`.
    pub(crate) queries: &'a [Line],
    /// Query heads; the last tile is filled with queries of zero.
    pub(crate) query_heads: usize,
}

/// `Σ 2^(logit − max)`, and with values, of the heads of a tile, over the rows so far.
#[derive(Clone, Debug)]
pub(crate) struct TileSums {
    /// Of head `lane % H`.
    pub(crate) max: [f32; LANES],
    /// Partial sums of head `lane % H`.
    pub(crate) denominator: [f32; LANES],
    /// `[H][value_chunks · CHUNK]`, in the lanes' order.
    pub(crate) numerator: Vec<Line>,
    /// The numerator of the rows before those: a sum of thousands of like numbers in f32 would
    /// lose more than the products do.
    pub(crate) folded: Vec<f64>,
}

/// Most lines that the logits of a block fill, `[rows][H]`.
const BLOCK_LINES: usize = BLOCK_ROWS * 4 / LANES;

/// Rows whose sums stay in f32.
const FOLD: usize = 256;

/// What is wanted of the rows one by one.
#[derive(Debug)]
pub(crate) struct PerRow<'a> {
    /// Logits, without the weights, `[tiles · H][rows]`.
    pub(crate) logits: &'a mut [f32],
    /// Lengths of the values, `[rows]`.
    pub(crate) norms: &'a mut [f32],
}

impl TileSums {
    pub(crate) fn new(heads: usize, value_chunks: usize) -> Self {
        let lines = heads * value_chunks * (CHUNK / LANES);
        let numerator = vec![Line([0.0; LANES]); lines];
        let zero = [0.0; LANES];
        let folded = vec![0.0; lines * LANES];
        Self { max: [LEAST; LANES], denominator: zero, numerator, folded }
    }

    /// Moves the numerator to f64.
    #[inline(always)]
    pub(crate) fn fold(&mut self) {
        let (folded, _) = self.folded.as_chunks_mut::<LANES>();
        for (folded, line) in folded.iter_mut().zip(&mut self.numerator) {
            for (sum, number) in folded.iter_mut().zip(&line.0) {
                *sum += f64::from(*number);
            }
            line.0 = [0.0; LANES];
        }
    }

    /// Makes the sums relative to new maxima. Rare: the maximum of `n` rows in random order rises
    /// `ln n` times.
    #[inline(always)]
    fn raise_max<const H: usize>(&mut self, best: &[f32; LANES]) {
        let lines = self.numerator.len() / H;
        for head in 0..H {
            let of_head = || (head..LANES).step_by(H);
            let max = of_head().map(|lane| best[lane]).fold(LEAST, f32::max);
            if max == self.max[head] {
                continue;
            }
            let factor = (self.max[head] - max).exp2();
            for lane in of_head() {
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

/// Query heads to a tile, of a group of `group`.
pub(crate) fn heads_per_tile(group: usize) -> usize {
    match group {
        1 => 1,
        2 => 2,
        _ => 4,
    }
}

/// Adds the rows of `pass` to the sums of its heads, `heads` of them in each tile: 1, 2 or 4.
///
/// # Panics
/// If a size does not fit, or a token is not in `pass.rows`.
pub(crate) fn attend<E: Element>(
    level: Level,
    heads: usize,
    pass: &Pass<'_, E>,
    sums: &mut [TileSums],
    per_row: Option<PerRow<'_>>,
) {
    pass.check(heads, sums, per_row.as_ref());
    // SAFETY: `check` has checked what the kernel reads and writes.
    unsafe {
        match heads {
            1 => level.run(Attend::<'_, '_, E, 1> { pass, sums, per_row }),
            2 => level.run(Attend::<'_, '_, E, 2> { pass, sums, per_row }),
            _ => level.run(Attend::<'_, '_, E, 4> { pass, sums, per_row }),
        }
    }
}

impl<E: Element> Pass<'_, E> {
    /// Checks what every kernel reads, and returns the number of tiles.
    fn check_tiles(&self, heads: usize) -> usize {
        let (rows, tiles) = (&self.rows, self.query_heads.div_ceil(heads));
        assert!([1, 2, 4].contains(&heads), "{heads} heads in a tile");
        assert!(self.tokens.end() <= rows.len(), "a token past the end of the cache");
        assert_eq!(self.queries.len(), tiles * heads * rows.key_chunks() * 2, "queries");
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

struct Attend<'a, 'p, E, const H: usize> {
    pass: &'a Pass<'p, E>,
    sums: &'a mut [TileSums],
    per_row: Option<PerRow<'a>>,
}

impl<E: Element, const H: usize> Kernel for Attend<'_, '_, E, H> {
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
            let block = window.block(first, rows.block_rows::<S, H>());
            self.add_block::<S>(&block);
            if first / FOLD < (first + block.len) / FOLD {
                self.sums.iter_mut().for_each(TileSums::fold);
            }
        }
    }
}

impl<E: Element, const H: usize> Attend<'_, '_, E, H> {
    #[inline(always)]
    unsafe fn add_block<S: Simd>(&mut self, block: &Block<'_, '_, E>) {
        for tile in 0..self.sums.len() {
            let three = self.pass.query_heads == tile * H + 3;
            // The first tile requests rows for all.
            match (H, three, tile) {
                (4, true, 0) => self.add_to_tile::<S, 3, true>(block, tile),
                (4, true, _) => self.add_to_tile::<S, 3, false>(block, tile),
                (_, _, 0) => self.add_to_tile::<S, H, true>(block, tile),
                _ => self.add_to_tile::<S, H, false>(block, tile),
            }
        }
        if let Some(per_row) = &mut self.per_row {
            let mut norms = [0.0; BLOCK_ROWS];
            norm_block::<S, E>(block, &mut norms);
            per_row.norms[block.first..][..block.len].copy_from_slice(&norms[..block.len]);
        }
    }

    /// Adds a block to the sums of a tile, of which `N` query heads are not zero.
    #[inline(always)]
    unsafe fn add_to_tile<S: Simd, const N: usize, const AHEAD: bool>(
        &mut self,
        block: &Block<'_, '_, E>,
        tile: usize,
    ) {
        let Self { pass, sums, per_row } = self;
        let sums = &mut sums[tile];
        let mut scores = [Line([LEAST; LANES]); BLOCK_LINES];
        let used = score_tile::<E, S, H, N, AHEAD>(pass, block, tile, &mut scores);
        if let Some(per_row) = per_row {
            note_logits::<E, H>(block, tile, used, per_row.logits);
        }
        if let Some(weights) = pass.log_weights {
            add_weights::<H>(used, &weights[block.first..]);
        }
        weigh_block::<S, H>(used, sums);
        let weights = used.as_ptr().cast::<f32>();
        Values::<E, N, AHEAD> { block, weights }.add::<S, H>(sums);
    }
}

/// Logits of a block for a tile of `pass`, of which `N` query heads are not zero: the lines in use,
/// `[rows][H]`.
#[inline(always)]
unsafe fn score_tile<'s, E: Element, S: Simd, const H: usize, const N: usize, const AHEAD: bool>(
    pass: &Pass<'_, E>,
    block: &Block<'_, '_, E>,
    tile: usize,
    scores: &'s mut [Line; BLOCK_LINES],
) -> &'s mut [Line] {
    let query_lines = H * pass.rows.key_chunks() * 2;
    let queries = pass.queries.as_ptr().add(tile * query_lines).cast::<f32>();
    let used = &mut scores[..(block.len * H).div_ceil(LANES)];
    Keys::<E, N, AHEAD> { block, queries }.score::<S, H>(used);
    used
}

/// Notes the logits of a block for the heads of a tile, `[rows][H]`, among those of all heads,
/// `[heads][rows]`.
#[inline(always)]
fn note_logits<E: Element, const H: usize>(
    block: &Block<'_, '_, E>,
    tile: usize,
    scores: &mut [Line],
    logits: &mut [f32],
) {
    let heads = logits.chunks_exact_mut(block.pass_len()).skip(tile * H).take(H);
    for (head, out) in heads.enumerate() {
        let logits = flat(scores).iter().skip(head).step_by(H);
        let out = out[block.first..][..block.len].iter_mut();
        out.zip(logits).for_each(|(out, logit)| *out = *logit);
    }
}

/// Adds the `log2` weights of rows to their logits `[rows][H]`.
#[inline(always)]
fn add_weights<const H: usize>(scores: &mut [Line], weights: &[f32]) {
    let rows = flat(scores).chunks_exact_mut(H);
    for (logits, weight) in rows.zip(weights) {
        for logit in logits {
            *logit += weight;
        }
    }
}

/// The numbers of some lines.
#[inline(always)]
fn flat(lines: &mut [Line]) -> &mut [f32] {
    let len = lines.len() * LANES;
    // SAFETY: a line is sixteen elements and nothing else.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
}

/// Turns logits into weights `2^(logit − max)` and adds them to the denominators.
#[inline(always)]
unsafe fn weigh_block<S: Simd, const H: usize>(scores: &mut [Line], sums: &mut TileSums) {
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
