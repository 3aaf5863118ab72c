//! The computation of a step, in which backends differ.

use vattention_core::{
    Error, Pipeline, Result, RowReport, RowsView, Shape, Step,
    engine::Timings,
    pipeline::{List, Reading},
    plugin::AttentionWeights,
    step::Softmax,
};

use crate::input::{check_lengths, limits};
use crate::workers::Workers;

/// Computes the steps of one layer of one sequence; a [`Layer`](crate::Layer) does everything else.
pub trait Executor: Send + Sized + 'static {
    /// True if [`execute`](Self::execute) can fail.
    const FALLIBLE: bool;

    /// Time at which selectors and samplers index tokens and prompts. It never changes.
    fn indexing(&self) -> Indexing {
        Indexing::Eager
    }

    /// Returns true if nothing that the executor keeps between steps depends on the settings of the
    /// pipelines.
    fn plans_at_steps(&self) -> bool {
        true
    }

    /// Stores the rows of new tokens, the first of which has the index `first`: keys `[kv_heads,
    /// new, head_dim]` and values `[kv_heads, new, value_dim]`. The layer has checked them.
    ///
    /// # Errors
    /// If the device cannot store them; the layer then keeps its `first` tokens.
    fn append(&mut self, first: usize, keys: RowsView<'_>, values: RowsView<'_>) -> Result<()> {
        let _ = (first, keys, values);
        Ok(())
    }

    /// Computes one step of each KV head, in their order.
    ///
    /// # Errors
    /// If the device fails.
    fn execute(&mut self, heads: Vec<HeadInput<'_>>, workers: &Workers) -> Result<Vec<HeadOutput>>;

    /// Bytes of the executor's own indexes, for all its tokens; keys and values are not counted.
    fn index_bytes(&self) -> usize {
        0
    }

    /// Bytes per token and KV head of the executor's own copy of keys and values; 0 without a copy.
    fn row_bytes(&self) -> usize {
        0
    }

    /// Removes all but the first `len` tokens. By default, a [fork](Self::fork) of these tokens
    /// replaces the executor.
    ///
    /// # Errors
    /// If the state cannot be copied; nothing has changed then.
    fn truncate(&mut self, len: usize) -> Result<()> {
        *self = self.fork(len)?;
        Ok(())
    }

    /// Returns an executor with the state of the first `len` tokens.
    ///
    /// # Errors
    /// If the state cannot be copied.
    fn fork(&self, len: usize) -> Result<Self>;
}

/// Time at which selectors and samplers index tokens and prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// When tokens are appended or a prompt is observed, so that forks do not index them again.
    Eager,
    /// Before the first step to which the tokens are visible.
    Lazy,
    /// Never, because the executor does not use the picks of selectors.
    Never,
}

/// One KV head at one step.
#[derive(Clone, Debug)]
pub struct HeadInput<'a> {
    /// Chooses the tokens to read.
    pub pipeline: &'a Pipeline,
    /// Queries, keys and values, and the number of visible tokens.
    pub step: Step<'a>,
    /// True if the output must list the tokens read.
    pub listed: bool,
}

/// Output of one KV head at one step.
#[derive(Debug)]
pub struct HeadOutput {
    /// Output of each query head of the group.
    pub rows: Vec<RowOutput>,
    /// Time spent in each phase, as far as it was measured.
    pub timings: Timings,
}

/// Output of one query head at one step.
#[derive(Debug)]
pub struct RowOutput {
    /// Sums over the tokens read, and over the attention sink.
    pub sums: RowSums,
    /// Numbers of tokens read, and error estimates.
    pub report: RowReport,
    /// Tokens read, if [`HeadInput::listed`].
    pub list: Option<List>,
}

/// Sums of one query head over the tokens read, and over its attention sink.
#[derive(Clone, Debug)]
pub struct RowSums {
    /// `N^` and `D^`.
    pub sums: Softmax,
    /// Logits of the tokens read, in ascending order of tokens; empty unless a selector needs
    /// feedback.
    pub logits: Vec<f64>,
}

impl HeadInput<'_> {
    /// Checks that the shapes of the step's parts match.
    pub(crate) fn check(&self) -> Result<()> {
        let Step { site, queries, keys, values, visible, form, .. } = &self.step;
        let Shape { head_dim, value_dim, .. } = site.shape;
        let fits = |what: &str, expected: usize, got: usize| {
            if got == expected { Ok(()) } else { Err(Error::shape(what, expected, got)) }
        };
        fits("queries", site.shape.group() * head_dim, queries.len())?;
        fits("head_dim of the keys", head_dim, keys.dim())?;
        fits("value_dim of the values", value_dim, values.dim())?;
        check_lengths(keys.len(), values.len(), 0)?;
        keys.check_scales("keys")?;
        values.check_scales("values")?;
        form.check(site.shape.group())?;
        limits(Some(&[*visible]), 1, keys.len())?;
        Ok(())
    }
}

impl HeadOutput {
    /// Combines the `sums` of each query head with the reports and lists of `reading`.
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

    /// Reports the attention weights of each query head of a [listed](HeadInput::listed) step to
    /// the selectors.
    pub(crate) fn feed_back(&self, step: &Step<'_>, pipeline: &mut Pipeline) {
        for (member, row) in self.rows.iter().enumerate() {
            let weights = row.sums.weights();
            let tokens = row.list.as_ref().map_or(&[][..], |list| &list.indices);
            let step_row = step.row(member);
            let sink = row.sums.sink_weight(step_row.sink_logit());
            let attended = AttentionWeights { tokens, weights: &weights, sink };
            pipeline.feedback(&step_row, &attended);
        }
    }
}

impl RowSums {
    /// Attention weights `e / D^` of the tokens read, in ascending order of tokens.
    pub fn weights(&self) -> Vec<f32> {
        let log_d = self.sums.log_denominator();
        self.logits.iter().map(|logit| (logit - log_d).exp() as f32).collect()
    }

    /// Weight `e^sink / D^` of an attention sink with this logit; 0 without a sink.
    pub fn sink_weight(&self, sink_logit: Option<f32>) -> f32 {
        let weight = |sink: f32| (f64::from(sink) - self.sums.log_denominator()).exp() as f32;
        sink_logit.map_or(0.0, weight)
    }
}
