//! Predictions of logits for one part of the tokens after another.

use std::ops::Range;

use vattention_core::{Picks, Row, step::prefetch};

use super::code_blocks::CodeBlocks;
use super::scan::{CodeQuery, MOST_CODE, QUERIES_PER_PASS, predict_centres, predict_logits};
use super::{BLOCK, GROUP, PART, RotatedCodes};

/// Number of elements of means that are fetched into the cache while queries are rotated.
const FETCHED: usize = 8192;

/// Predictions of the logits of rows that see the same tokens, for one part of the tokens after
/// another, so that the logits of a part need not leave the cache before they are used.
#[derive(Clone, Debug)]
pub struct CodeScan<'a> {
    codes: &'a RotatedCodes,
    queries: Vec<CodeQuery>,
    /// Products of the queries with the means of blocks, `[rows][blocks]`. The number of blocks is
    /// rounded up to whole groups.
    centres: Vec<f32>,
    /// Number of tokens in complete blocks.
    coded: usize,
    /// Number of tokens.
    visible: usize,
    /// Logits of the tokens after the last complete block, `[rows][visible − coded]`.
    rest: Vec<f32>,
}

impl<'a> CodeScan<'a> {
    pub(super) fn new(
        codes: &'a RotatedCodes,
        rows: &[Row<'_>],
        picks: &Picks,
        [shrink, scale]: [f32; 2],
    ) -> Self {
        let (coded, visible) = rows.first().map_or((0, 0), |row| (codes.coded(row), row.visible()));
        if let Some((_, CodeBlocks { means, .. })) = codes.blocks.segments(coded).next() {
            prefetch(&means[..means.len().min(FETCHED)]);
        }
        let mut rest = vec![f32::MIN; rows.len() * (visible - coded)];
        if (coded..visible).any(|token| !picks.contains(token)) {
            for (row, rest) in rows.iter().zip(rest.chunks_exact_mut(visible - coded)) {
                row.keys().dots(coded..visible, row.query(), rest);
                for logit in rest {
                    *logit *= scale;
                }
            }
        }
        let query = |row: &Row<'_>| CodeQuery::new(row.query(), &codes.rotation, shrink * scale);
        let queries: Vec<CodeQuery> = rows.iter().map(query).collect();
        let mut scan = Self { codes, queries, centres: Vec::new(), coded, visible, rest };
        scan.set_centres(scale);
        scan
    }

    /// Parts of the tokens, in order; all but the last have [`PART`] tokens.
    pub fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let visible = self.visible;
        (0..visible).step_by(PART).map(move |first| first..visible.min(first + PART))
    }

    /// Returns true if all predictions are finite and their terms are below half of the largest
    /// f32. The code's term of each token counts as if the token had the largest factor.
    pub fn is_finite(&self) -> bool {
        let peak = self.codes.peaks.max_of_first(self.coded) as f32;
        let longest = (MOST_CODE * self.codes.dim) as f32 * peak;
        // Comparisons with NaN are false.
        let are_small = |all: bool, centre: &f32| all & (centre.abs() < f32::MAX / 2.0);
        self.centres.iter().fold(true, are_small)
            && self.queries.iter().all(|query| query.is_finite(longest))
            && self.rest.iter().all(|logit| logit.is_finite())
    }

    /// Predicts the logits of some of the rows, from `row` on, for a part of the tokens, and writes
    /// them to `out`, `[rows][tokens]`. A row may have more elements, which are not changed.
    ///
    /// # Panics
    /// If `tokens` is not one of the [parts](Self::parts), or there are fewer rows or elements.
    pub fn predict<R: AsMut<[f32]>>(&self, tokens: Range<usize>, row: usize, out: &mut [R]) {
        assert!(tokens.start.is_multiple_of(PART) && tokens.end <= self.visible, "a part");
        let coded = tokens.start.min(self.coded)..tokens.end.min(self.coded);
        let queries = &self.queries[row..][..out.len()];
        let blocks = self.blocks();
        for (i, queries) in queries.chunks(QUERIES_PER_PASS).enumerate() {
            let first = i * QUERIES_PER_PASS;
            let out = &mut out[first..][..queries.len()];
            let centres = &self.centres[(row + first) * blocks..];
            for (here, segment) in self.codes.blocks.segments(coded.end) {
                let common = here.start.max(coded.start)..here.end;
                if common.is_empty() {
                    continue;
                }
                let words = segment.words_from((common.start - here.start) / BLOCK);
                let factors = &self.codes.factors[common.clone()];
                let centres = (&centres[common.start / BLOCK..], blocks);
                predict_logits(words, factors, queries, centres, common.start - tokens.start, out);
            }
        }
        let rest = self.visible - self.coded;
        if tokens.end > self.coded {
            let tail = self.coded.max(tokens.start)..tokens.end;
            for (i, out) in out.iter_mut().enumerate() {
                let rest = &self.rest[(row + i) * rest..][..rest];
                out.as_mut()[tail.start - tokens.start..tail.end - tokens.start]
                    .copy_from_slice(&rest[tail.start - self.coded..tail.end - self.coded]);
            }
        }
    }

    /// Number of blocks, rounded up to whole groups.
    fn blocks(&self) -> usize {
        (self.coded / BLOCK).next_multiple_of(GROUP)
    }

    /// Computes the products of the queries with the means of blocks.
    fn set_centres(&mut self, scale: f32) {
        let (blocks, dim) = (self.blocks(), self.codes.dim);
        let mut centres = vec![0.0; self.queries.len() * blocks];
        for (i, queries) in self.queries.chunks(QUERIES_PER_PASS).enumerate() {
            let centres = &mut centres[i * QUERIES_PER_PASS * blocks..];
            for (here, CodeBlocks { means, .. }) in self.codes.blocks.segments(self.coded) {
                let (first, count) = (here.start / BLOCK, here.len() / BLOCK);
                let groups = &means[..count.div_ceil(GROUP) * GROUP * dim];
                predict_centres(groups, queries, scale, &mut centres[first..], [count, blocks]);
            }
        }
        self.centres = centres;
    }
}
