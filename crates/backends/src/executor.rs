//! What backends differ in, behind the walk over KV heads.

use vattention_core::{
    Error, Pipeline, Result, RowReport, RowsView, Shape, Step,
    engine::Timings,
    pipeline::{List, Reading},
    step::Softmax,
};

use crate::input::{check_lengths, limits};
use crate::workers::Workers;

/// Answers the steps of one layer of one sequence; a [`Layer`](crate::Layer) does all the rest.
pub trait Executor: Send + Sized + 'static {
    /// Whether [`answer`](Self::answer) can fail.
    const FALLIBLE: bool;

    /// When selectors and samplers index tokens and prompts. The same for as long as it lives.
    fn indexing(&self) -> Indexing {
        Indexing::Eager
    }

    /// Stores rows that are about to be the tokens from `first` on: keys `[kv_heads, new,
    /// head_dim]` and values `[kv_heads, new, value_dim]`, which can be stored.
    ///
    /// # Errors
    /// If they cannot be stored here; then `first` tokens are all there are, as before.
    fn append(&mut self, first: usize, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        let _ = (first, keys, values);
        Ok(())
    }

    /// Answers one query of each KV head, in their order.
    ///
    /// # Errors
    /// If the device fails.
    fn answer(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>>;

    /// Bytes of what it keeps itself beside keys and values, of the tokens that it knows of.
    fn index_bytes(&self) -> usize {
        0
    }

    /// Bytes of each KV head's row of a token that it holds itself, beside the host's.
    fn row_bytes(&self) -> usize {
        0
    }

    /// An executor that goes on from the first `len` tokens.
    ///
    /// # Errors
    /// If its state cannot be copied.
    fn fork(&self, len: usize) -> Result<Self>;
}

/// The time at which selectors and samplers index tokens and prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// When tokens are appended or a prompt is observed.
    Eager,
    /// When a row sees the tokens.
    Lazy,
    /// Never: the executor does without their picks.
    Never,
}

/// One KV head at one step.
#[derive(Clone, Debug)]
pub struct HeadInput<'a> {
    /// What to read is its choice.
    pub pipeline: &'a Pipeline,
    /// Queries, and the tokens they may read.
    pub step: Step<'a>,
    /// Whether the lists of tokens read are wanted.
    pub listed: bool,
}

/// What one KV head makes of one query.
#[derive(Debug)]
pub struct HeadOutput {
    /// Of each member of the group.
    pub rows: Vec<RowOutput>,
    /// Where the time went, as far as it is known.
    pub timings: Timings,
}

/// What an executor answers for one row.
#[derive(Debug)]
pub struct RowOutput {
    /// What it sums up.
    pub sums: RowSums,
    /// How much was read, and what that is worth.
    pub report: RowReport,
    /// What was read, if that is wanted.
    pub list: Option<List>,
}

/// What an executor sums up for one row.
#[derive(Clone, Debug)]
pub struct RowSums {
    /// `N^` and `D^`.
    pub sums: Softmax,
    /// Logits of the tokens read, ascending; if a selector waits for feedback.
    pub logits: Vec<f64>,
}

impl HeadInput<'_> {
    /// Refuses a step whose parts do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let Step { site, queries, keys, values, visible, .. } = &self.step;
        let Shape { head_dim, value_dim, .. } = site.shape;
        let fits = |what: &str, expected: usize, got: usize| {
            if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
        };
        fits("queries", site.shape.group() * head_dim, queries.len())?;
        fits("head_dim of the keys", head_dim, keys.dim())?;
        fits("value_dim of the values", value_dim, values.dim())?;
        check_lengths(keys.len(), values.len(), 0)?;
        limits(Some(&[*visible]), 1, keys.len())?;
        Ok(())
    }
}

impl HeadOutput {
    /// Of the sums of each member, and what they are over.
    pub fn new(
        head: &HeadInput<'_>,
        sums: Vec<RowSums>,
        reading: &Reading,
        timings: Timings,
    ) -> Self {
        let row = |(member, sums)| RowOutput {
            sums,
            report: reading.report(member),
            list: head.listed.then(|| reading.list(member)),
        };
        Self { rows: sums.into_iter().enumerate().map(row).collect(), timings }
    }
}

impl RowSums {
    /// `e / D^` of each token read, ascending: what selectors that wait for feedback are told.
    pub fn weights(&self) -> Vec<f32> {
        let log_d = self.sums.log_denominator();
        self.logits.iter().map(|logit| (logit - log_d).exp() as f32).collect()
    }
}
