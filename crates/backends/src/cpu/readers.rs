//! The query heads that read one list, and their sums.

use std::f64::consts::{LN_2, LOG2_E};

use rayon::prelude::*;
use vattention_core::step::Softmax;

use super::kernel::{
    GatheredRows, Line, Pass, PerRow, Rows, Span, TileSums, attend, gather, heads_per_tile,
};
use super::simd::{CHUNK, Element, LANES, Level, from_lanes, to_lanes};

/// Rows that are summed in f32 before their sums go to f64: a unit of work, whatever the number
/// of threads.
const PIECE: usize = 4096;

/// Query heads of a group, ready for the kernels.
#[derive(Clone, Debug)]
pub(crate) struct Readers<'a, E> {
    pub(crate) level: Level,
    pub(crate) rows: Rows<'a, E>,
    /// Query heads, and how many of them share a tile.
    members: usize,
    per_tile: usize,
    value_dim: usize,
    queries: Vec<Line>,
    /// True if pieces may be divided among threads.
    split: bool,
}

/// Logits of rows, in powers of two, and lengths of values.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowByRow {
    /// `[readers][rows]`.
    pub(crate) logits: Vec<Vec<f32>>,
    /// `[rows]`.
    pub(crate) norms: Vec<f32>,
}

impl RowByRow {
    /// No rows, for `readers` query heads.
    pub(crate) fn new(readers: usize) -> Self {
        Self { logits: vec![Vec::new(); readers], norms: Vec::new() }
    }
}

impl<'a, E: Element> Readers<'a, E> {
    /// Readers with `queries` `[members · head_dim]`, scaled.
    pub(crate) fn new(
        rows: Rows<'a, E>,
        queries: &[f32],
        head_dim: usize,
        value_dim: usize,
        split: bool,
    ) -> Self {
        let members = queries.len() / head_dim;
        let per_tile = heads_per_tile(members);
        let queries = vectors::<E>(queries, head_dim, LOG2_E as f32, per_tile, rows.key_chunks());
        Self { level: Level::best(), rows, members, per_tile, value_dim, queries, split }
    }

    /// The same readers, with the instructions of `level`.
    pub(crate) fn with_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Query heads.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Elements of a value.
    pub(crate) fn value_dim(&self) -> usize {
        self.value_dim
    }

    fn tiles(&self) -> usize {
        self.members.div_ceil(self.per_tile)
    }

    /// The sums of no rows.
    pub(crate) fn nothing(&self) -> Vec<Softmax> {
        vec![Softmax::new(self.value_dim); self.members]
    }

    /// The sums of some rows, with a weight each, `log2`.
    pub(crate) fn read(&self, tokens: Span<'_>, log_weights: Option<&[f32]>) -> Vec<Softmax> {
        let piece = |first| self.piece(&tokens.part(first, PIECE), first, log_weights, None);
        let firsts: Vec<usize> = (0..tokens.len()).step_by(PIECE).collect();
        let pieces: Vec<Vec<Softmax>> = if self.split && firsts.len() > 1 {
            firsts.into_par_iter().map(piece).collect()
        } else {
            firsts.into_iter().map(piece).collect()
        };
        let mut all = self.nothing();
        for piece in &pieces {
            add(&mut all, piece);
        }
        all
    }

    /// Adds some rows to `all`, with a weight each, and notes each of them.
    pub(crate) fn note(
        &self,
        tokens: Span<'_>,
        log_weights: Option<&[f32]>,
        all: &mut [Softmax],
        noted: &mut RowByRow,
    ) {
        for first in (0..tokens.len()).step_by(PIECE) {
            let span = tokens.part(first, PIECE);
            let mut logits = vec![0.0; span.len() * self.tiles() * self.per_tile];
            let mut norms = vec![0.0; span.len()];
            let per_row = PerRow { logits: &mut logits, norms: &mut norms };
            add(all, &self.piece(&span, first, log_weights, Some(per_row)));
            noted.norms.append(&mut norms);
            let of_readers = logits.chunks_exact(span.len());
            noted.logits.iter_mut().zip(of_readers).for_each(|(all, new)| all.extend(new));
        }
    }

    /// Notes some rows, whose weights are not known yet, and keeps their values
    /// `[rows][value_chunks · CHUNK]`.
    pub(crate) fn gather(&self, tokens: &[u32], noted: &mut RowByRow, values: &mut Vec<E>)
    where
        E: Default,
    {
        let stride = self.rows.value_chunks() * CHUNK;
        for tokens in tokens.chunks(PIECE) {
            let (count, known) = (tokens.len(), noted.norms.len());
            let mut logits = vec![0.0; count * self.tiles() * self.per_tile];
            noted.norms.resize(known + count, 0.0);
            values.resize((known + count) * stride, E::default());
            let out = GatheredRows {
                logits: &mut logits,
                norms: &mut noted.norms[known..],
                values: &mut values[known * stride..],
            };
            gather(self.level, self.per_tile, &self.pass(Span::List(tokens), None), out);
            let of_readers = logits.chunks_exact(count);
            noted.logits.iter_mut().zip(of_readers).for_each(|(all, new)| all.extend(new));
        }
    }

    /// A pass over rows, with a weight each, `log2`.
    fn pass<'p>(&'p self, tokens: Span<'p>, log_weights: Option<&'p [f32]>) -> Pass<'p, E> {
        let Self { rows, queries, members, .. } = self;
        Pass { rows: *rows, tokens, log_weights, queries, query_heads: *members }
    }

    /// The sums of one piece, whose weights begin at `first`.
    fn piece(
        &self,
        tokens: &Span<'_>,
        first: usize,
        log_weights: Option<&[f32]>,
        per_row: Option<PerRow<'_>>,
    ) -> Vec<Softmax> {
        let log_weights = log_weights.map(|weights| &weights[first..][..tokens.len()]);
        let pass = self.pass(*tokens, log_weights);
        let no_rows = TileSums::new(self.per_tile, self.rows.value_chunks());
        let mut tiles = vec![no_rows; self.tiles()];
        attend(self.level, self.per_tile, &pass, &mut tiles, per_row);
        self.sums(tiles)
    }

    /// The sums of each member, out of their tiles.
    fn sums(&self, mut tiles: Vec<TileSums>) -> Vec<Softmax> {
        tiles.iter_mut().for_each(TileSums::fold);
        let member = |member: usize| {
            let (tile, head) = (&tiles[member / self.per_tile], member % self.per_tile);
            let of_head = |lanes: &[f32; LANES]| -> f64 {
                lanes.iter().skip(head).step_by(self.per_tile).map(|&x| f64::from(x)).sum()
            };
            let lines = tile.numerator.len() / self.per_tile;
            let mut numerator = vec![0.0; self.value_dim];
            let folded = &tile.folded[head * lines * LANES..][..lines * LANES];
            from_lanes::<E>(folded, &mut numerator);
            let shift = f64::from(tile.max[head]) * LN_2;
            Softmax::from_sums(shift, of_head(&tile.denominator), numerator)
        };
        (0..self.members).map(member).collect()
    }
}

/// Vectors `[count · dim]` in the lanes' order, in whole tiles `[tiles][per_tile][chunks · CHUNK]`,
/// times `factor`.
pub(crate) fn vectors<E: Element>(
    vectors: &[f32],
    dim: usize,
    factor: f32,
    per_tile: usize,
    chunks: usize,
) -> Vec<Line> {
    let (count, lines) = (vectors.len() / dim, chunks * CHUNK / LANES);
    let mut out = vec![Line([0.0; LANES]); count.next_multiple_of(per_tile) * lines];
    for (vector, lanes) in vectors.chunks_exact(dim).zip(out.chunks_exact_mut(lines)) {
        to_lanes::<E>(vector, factor, lanes);
    }
    out
}

/// Adds the sums of other rows to each member's.
pub(crate) fn add(all: &mut [Softmax], other: &[Softmax]) {
    all.iter_mut().zip(other).for_each(|(all, other)| add_sums(all, other));
}

/// Adds the sums of other rows.
pub(crate) fn add_sums(all: &mut Softmax, other: &Softmax) {
    let mut other = other.clone();
    let shift = all.shift().max(other.shift());
    all.rebase(shift);
    other.rebase(shift);
    all.merge(&other);
}
