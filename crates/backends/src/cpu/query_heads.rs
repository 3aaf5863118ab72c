//! The query heads that read one token list, and their sums.

use std::f64::consts::{LN_2, LOG2_E};

use vattention_core::{
    SoftmaxForm,
    step::{Scratch, Softmax, StepThreads},
};

use super::kernel::{
    GatheredRows, KvRows, Pass, PerRow, TileQueries, TileSums, TokenSpan, attend, gather,
    heads_per_tile,
};
use super::simd::{LANES, Level, SimdElement, from_lanes};

/// Number of rows of a unit of work, whose sums are merged in f64. It does not depend on the number
/// of threads, so that results do not either.
const PIECE: usize = 4096;

/// Number of rows that a thread gathers while another one waits for work. To gather them takes some
/// microseconds, and to pass them to another thread about one. Results do not depend on it.
const SHORT_PIECE: usize = 128;

/// Query heads of a group, in the layout of the kernels.
#[derive(Clone, Debug)]
pub(crate) struct QueryHeads<'a, E> {
    pub(crate) level: Level,
    pub(crate) rows: KvRows<'a, E>,
    /// Number of query heads.
    members: usize,
    /// Number of query heads in a tile.
    per_tile: usize,
    value_dim: usize,
    queries: TileQueries,
    /// Soft cap of logits in base 2.
    soft_cap: Option<f32>,
    /// Sums of each query head over no rows: those of its attention sink, if there is one.
    initial_sums: Vec<Softmax>,
    /// Threads among which pieces may be divided.
    threads: StepThreads<'a>,
}

/// Logits of rows in base 2, and norms of their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogitsAndNorms {
    /// `[members][rows]`
    pub(crate) logits: Vec<Vec<f32>>,
    /// `[rows]`
    pub(crate) norms: Vec<f32>,
}

impl LogitsAndNorms {
    /// Creates an empty instance for a number of query heads.
    pub(crate) fn new(members: usize) -> Self {
        Self { logits: vec![Vec::new(); members], norms: Vec::new() }
    }

    /// Adds logits `[tiles · per_tile][count]` of `count` rows.
    fn add_logits(&mut self, logits: &[f32], count: usize) {
        for (all, new) in self.logits.iter_mut().zip(logits.chunks_exact(count)) {
            all.extend(new);
        }
    }
}

impl<'a, E: SimdElement> QueryHeads<'a, E> {
    /// Creates query heads with scaled `queries` `[members · head_dim]`.
    pub(crate) fn new(
        rows: &KvRows<'a, E>,
        queries: &[f32],
        head_dim: usize,
        value_dim: usize,
    ) -> Self {
        let members = queries.len() / head_dim;
        let per_tile = heads_per_tile(members);
        let log2_e = LOG2_E as f32;
        let chunks = rows.key_chunks();
        let queries = TileQueries::new::<E>(queries, head_dim, log2_e, per_tile, chunks);
        Self {
            level: Level::best(),
            rows: *rows,
            members,
            per_tile,
            value_dim,
            queries,
            soft_cap: None,
            initial_sums: vec![Softmax::new(value_dim); members],
            threads: StepThreads::default(),
        }
    }

    /// Returns these query heads with a form of the softmax, which has a sink for each of them or
    /// none.
    pub(crate) fn with_softmax(self, form: SoftmaxForm<'_>) -> Self {
        let sums = (0..self.members).map(|head| form.empty_sums(head, self.value_dim));
        let initial_sums = sums.collect();
        Self { soft_cap: form.soft_cap.map(|cap| cap * LOG2_E as f32), initial_sums, ..self }
    }

    /// Returns these query heads with the instructions of `level`.
    pub(crate) fn with_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Returns these query heads with threads among which their work may be divided.
    pub(crate) fn with_threads(self, threads: StepThreads<'a>) -> Self {
        Self { threads, ..self }
    }

    /// Number of query heads.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Number of elements of a value.
    pub(crate) fn value_dim(&self) -> usize {
        self.value_dim
    }

    fn tiles(&self) -> usize {
        self.members.div_ceil(self.per_tile)
    }

    /// Sums over no rows, with attention sinks. They are to be added to once per query head.
    pub(crate) fn initial_sums(&self) -> Vec<Softmax> {
        self.initial_sums.clone()
    }

    /// Sums over no rows, without attention sinks.
    pub(crate) fn empty_sums(&self) -> Vec<Softmax> {
        vec![Softmax::new(self.value_dim); self.members]
    }

    /// Reads rows and returns their sums, without attention sinks. `log_weights` are the base-2
    /// logarithms of their weights.
    pub(crate) fn read(&self, tokens: TokenSpan<'_>, log_weights: Option<&[f32]>) -> Vec<Softmax> {
        let piece = |first| self.piece(&tokens.part(first, PIECE), first, log_weights, None);
        if (1..=PIECE).contains(&tokens.len()) {
            return piece(0);
        }
        let firsts: Vec<usize> = (0..tokens.len()).step_by(PIECE).collect();
        let mut all = self.empty_sums();
        for piece in &self.threads.map(firsts, piece) {
            add(&mut all, piece);
        }
        all
    }

    /// Adds rows to `all` like [`Self::read`], and their logits and norms to `recorded`.
    pub(crate) fn read_and_record(
        &self,
        tokens: TokenSpan<'_>,
        log_weights: Option<&[f32]>,
        all: &mut [Softmax],
        recorded: &mut LogitsAndNorms,
    ) {
        for first in (0..tokens.len()).step_by(PIECE) {
            let span = tokens.part(first, PIECE);
            let mut logits = vec![0.0; span.len() * self.tiles() * self.per_tile];
            let mut norms = vec![0.0; span.len()];
            let per_row = PerRow { logits: &mut logits, norms: &mut norms };
            add(all, &self.piece(&span, first, log_weights, Some(per_row)));
            recorded.norms.append(&mut norms);
            recorded.add_logits(&logits, span.len());
        }
    }

    /// Adds the logits of rows to `recorded`, and copies of their values
    /// `[rows][value_chunks · CHUNK]` to `values`.
    pub(crate) fn gather(
        &self,
        tokens: &[u32],
        recorded: &mut LogitsAndNorms,
        values: &mut Vec<E::Sample>,
    ) {
        let (count, heads) = (tokens.len(), self.tiles() * self.per_tile);
        let len = if self.threads.has_waiting_thread() { SHORT_PIECE } else { count.max(1) };
        let mut logits = Scratch::new(heads * count);
        let out = GatheredRows { logits: &mut logits, values };
        let pass = self.pass(TokenSpan::List(tokens), None);
        gather(self.level, (self.threads, len), self.per_tile, &pass, out);
        for part in logits.chunks(heads * len) {
            recorded.add_logits(part, part.len() / heads);
        }
    }

    /// Pass over rows. `log_weights` are the base-2 logarithms of their weights.
    fn pass<'p>(&'p self, tokens: TokenSpan<'p>, log_weights: Option<&'p [f32]>) -> Pass<'p, E> {
        let Self { rows, queries, members, soft_cap, .. } = self;
        Pass {
            rows: *rows,
            tokens,
            log_weights,
            queries,
            query_heads: *members,
            soft_cap: *soft_cap,
        }
    }

    /// Reads one piece, whose weights begin at `first`, and returns its sums.
    fn piece(
        &self,
        tokens: &TokenSpan<'_>,
        first: usize,
        log_weights: Option<&[f32]>,
        per_row: Option<PerRow<'_>>,
    ) -> Vec<Softmax> {
        let log_weights = log_weights.map(|weights| &weights[first..][..tokens.len()]);
        let pass = self.pass(*tokens, log_weights);
        let no_rows = |_| TileSums::new(self.per_tile, self.rows.value_chunks());
        let mut tiles: Vec<TileSums> = (0..self.tiles()).map(no_rows).collect();
        attend(self.level, self.per_tile, &pass, &mut tiles, per_row);
        self.sums(&tiles)
    }

    /// Extracts the sums of each query head from its tile.
    fn sums(&self, tiles: &[TileSums]) -> Vec<Softmax> {
        let member = |member: usize| {
            let (tile, head) = (&tiles[member / self.per_tile], member % self.per_tile);
            let sum_lanes = |lanes: &[f32; LANES]| -> f64 {
                lanes.iter().skip(head).step_by(self.per_tile).map(|&x| f64::from(x)).sum()
            };
            let lanes = tile.numerators.len() / self.per_tile;
            let mut numerator = vec![0.0; self.value_dim];
            let numerators = &tile.numerators[head * lanes..][..lanes];
            from_lanes::<E>(numerators, &mut numerator);
            let shift = f64::from(tile.max[head]) * LN_2;
            Softmax::from_sums(shift, sum_lanes(&tile.denominator), numerator)
        };
        (0..self.members).map(member).collect()
    }
}

/// Adds the sums over other rows, for each query head.
pub(crate) fn add(all: &mut [Softmax], other: &[Softmax]) {
    all.iter_mut().zip(other).for_each(|(all, other)| all.merge(other));
}
