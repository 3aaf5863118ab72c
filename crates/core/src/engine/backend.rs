//! The interface of a machine that runs pipelines, and its reports.

use std::fmt;
use std::ops::AddAssign;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{Array2, Array3, ArrayView3};

use crate::{
    Result,
    engine::Selection,
    pipeline::{PipelineConfig, RowReport},
    step::{RowsView, Shape, TokenClass},
};

/// A machine that runs pipelines.
pub trait Backend: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// What it is, in one line.
    fn summary(&self) -> &str;

    /// Whether it can run on this machine.
    ///
    /// # Errors
    /// [`Error::Backend`](crate::Error::Backend), with the reason.
    fn available(&self) -> Result<()> {
        Ok(())
    }

    /// Prepares one layer of one sequence, before any token has arrived.
    ///
    /// # Errors
    /// A shape, pipeline or option that is not supported, by name.
    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>>;

    /// Runs many sequences at once, on `threads` threads as in [`Options::threads`]. The results
    /// are those of successive calls, in the order of `batch`.
    ///
    /// # Errors
    /// If the threads cannot be started; then nothing has changed. Each sequence also has its own
    /// result.
    fn attend_batch(
        &self,
        batch: Vec<Turn<'_>>,
        threads: Option<usize>,
    ) -> Result<Vec<Result<Output>>> {
        let _ = threads;
        Ok(batch.into_iter().map(Turn::attend).collect())
    }
}

/// One sequence's part in [`Backend::attend_batch`].
#[allow(missing_debug_implementations)]
pub struct Turn<'a> {
    /// The sequence.
    pub attention: &'a mut dyn Attention,
    /// Its queries, `[query_heads, queries, head_dim]`.
    pub queries: ArrayView3<'a, f32>,
    /// How many tokens each of them may read; `None` is all.
    pub visible: Option<&'a [usize]>,
}

impl Turn<'_> {
    /// Calls [`Attention::attend`].
    ///
    /// # Errors
    /// As it does.
    pub fn attend(self) -> Result<Output> {
        self.attention.attend(self.queries, self.visible)
    }
}

/// Attention of one layer of one sequence. Owns the keys and values.
pub trait Attention: Send {
    /// [`append`](#method.append) and [`append_classed`](#method.append_classed) call this; only implementations and wrappers use it: keys
    /// `[kv_heads, new, head_dim]`, values `[kv_heads, new, value_dim]` and, if they are known, the tokens' classes, `[new]`.
    ///
    /// # Errors
    /// A wrong shape, a number that cannot be stored, no memory, or no classes where a selector needs them
    /// ([`Error::Classes`](crate::Error::Classes)); then nothing has changed.
    fn append_rows(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()>;

    /// Shows the selectors the last queries of a processed prompt, `[query_heads, prompt,
    /// head_dim]`; the last one is of the newest token. Selectors that learn from a prompt pick
    /// everything before that ([`RowReport::unobserved`]).
    ///
    /// # Errors
    /// A wrong shape, or a number that is not finite; then nothing has changed.
    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()>;

    /// Attends from queries `[query_heads, queries, head_dim]`, in order, one step each. Query `t`
    /// reads the first `visible[t]` tokens, or all.
    ///
    /// # Errors
    /// A wrong shape, a number that is not finite, or a limit outside `1..=len`; then nothing has
    /// changed.
    fn attend(&mut self, queries: ArrayView3<'_, f32>, visible: Option<&[usize]>)
    -> Result<Output>;

    /// Removes all but the first `tokens` tokens. Selectors then pick as if the others had never
    /// been appended; the step number continues, so samples are drawn anew. Selectors and samplers
    /// rebuild their indexes, which costs as much as appending the remaining tokens; to speculate
    /// often, [`fork`](Self::fork) instead.
    ///
    /// Selectors that learn from a prompt are shown the [observed](Self::observe) queries of the
    /// remaining tokens again. If none remains, [`attend`](Self::attend) refuses
    /// ([`Error::Unobserved`](crate::Error::Unobserved)) until another prompt is observed.
    ///
    /// # Errors
    /// More tokens than there are, or [`Error::Learns`](crate::Error::Learns); then nothing has changed.
    fn truncate(&mut self, tokens: usize) -> Result<()>;

    /// A sequence that continues from the same tokens and step, independently. A new `sequence`
    /// number makes its samples independent too.
    ///
    /// # Errors
    /// If the state cannot be copied, as with [`Error::Memory`](crate::Error::Memory).
    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>>;

    /// Tokens appended so far.
    fn len(&self) -> usize;

    /// Bytes of the indexes of all KV heads, in selectors or in the backend, beside keys and values,
    /// for the tokens indexed so far.
    fn index_bytes(&self) -> usize;

    /// Bytes of the keys and values that it holds, on the host and on a device, without room for more. Forks count those that they
    /// share. Fewer than were appended, if evicted tokens are [freed](Options::free_evicted).
    fn held_bytes(&self) -> usize;

    /// Whether no token has been appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl dyn Attention + '_ {
    /// Appends keys `[kv_heads, new, head_dim]` and values `[kv_heads, new, value_dim]`: views of arrays in f32, f16 or bf16. Numbers of
    /// the [storage](Options::storage) type are copied; others are rounded to it.
    ///
    /// # Errors
    /// A wrong shape, a number that cannot be stored, no memory, or [`Error::Classes`](crate::Error::Classes) if a selector needs
    /// [classes](#method.append_classed); then nothing has changed.
    pub fn append<'k, 'v>(
        &mut self,
        keys: impl Into<RowsView<'k>>,
        values: impl Into<RowsView<'v>>,
    ) -> Result<()> {
        self.append_rows(keys.into(), values.into(), None)
    }

    /// As [`append`](#method.append), with what each token is in the text, `[new]`, for pipelines that
    /// [need](PipelineConfig::needs_classes) it. Others drop it.
    ///
    /// # Errors
    /// As [`append`](#method.append), or another number of classes than tokens.
    pub fn append_classed<'k, 'v>(
        &mut self,
        keys: impl Into<RowsView<'k>>,
        values: impl Into<RowsView<'v>>,
        classes: &[TokenClass],
    ) -> Result<()> {
        self.append_rows(keys.into(), values.into(), Some(classes))
    }
}

/// How to run one sequence.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "switches that do not depend on each other")]
pub struct Options {
    /// The sequence's number, which keys its random samples.
    pub sequence: u32,
    /// What queries are multiplied by; `None` is `1 / √head_dim`.
    pub scale: Option<f32>,
    /// How rows are stored.
    pub storage: Storage,
    /// Where a device keeps rows.
    pub placement: Placement,
    /// In what pages of memory the host's rows are.
    pub page_size: PageSize,
    /// Threads to use; `None` leaves it to the backend. The results do not depend on it.
    pub threads: Option<usize>,
    /// Whether outputs carry the [`Selection`].
    pub return_selection: bool,
    /// Queries processed before this sequence came here: the number of its first step. Its random
    /// numbers are those of that step. A pipeline that
    /// [depends on earlier steps](crate::Pipeline::depends_on_earlier_steps) begins as if there
    /// were none.
    pub first_step: u32,
    /// When to read everything instead of the pipeline's choice.
    pub fall_back: FallBack,
    /// Whether samples of a given `size` are not checked: steps are faster, and rows have no error bar.
    pub omit_error_bars: bool,
    /// Whether outputs carry [`Timings`].
    pub timed: bool,
    /// Whether keys and values of evicted tokens are freed, after prompts and calls of [`attend`](Attention::attend), 16 tokens
    /// at a time. It needs selectors that evict ([`Selector::live`](crate::plugin::Selector::live)), all of them, and no sampler; where
    /// nothing is evicted nothing is freed. Then queries must see at least as many tokens as those before, nothing can be
    /// [truncated](Attention::truncate) any more, and nothing falls back to reading everything. Rows on a device are not freed.
    pub free_evicted: bool,
}

/// When everything is read instead of a pipeline's choice, because that is faster. It is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallBack {
    /// Never.
    Never,
    /// Where a list and the checks of its sample cost more than reading all rows, by a fixed count. All machines read
    /// the same.
    #[default]
    ByCount,
    /// There, and wherever reading everything was faster in this sequence's earlier steps, by the clock. The tokens read
    /// depend on the machine and its load: outputs cannot be repeated to the last digit. Only the `cpu` backend does it;
    /// the others use `ByCount`.
    ByClock,
}

impl FallBack {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Never, Self::ByCount, Self::ByClock];

    /// Name in options: never, by-count or by-clock.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::ByCount => "by-count",
            Self::ByClock => "by-clock",
        }
    }
}

impl fmt::Display for FallBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FallBack {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|fall_back| fall_back.name() == name);
        found.ok_or_else(|| format!("expected never, by-count or by-clock, got {name:?}"))
    }
}

/// Where a device keeps rows. Backends in host memory ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In its own memory.
    #[default]
    Device,
    /// In host memory: it fetches the rows that it reads over the bus, and has room for longer
    /// contexts.
    Host,
}

/// How large pages of the host's memory are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// Huge ones, where the system has any: gathered rows are read faster.
    #[default]
    Huge,
    /// Small ones, for comparison.
    Small,
}

/// How a cache stores rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// 4 bytes a number, as given.
    #[default]
    F32,
    /// 2 bytes, 11 bits of precision, magnitudes up to 65504.
    F16,
    /// 2 bytes, 8 bits of precision, the range of f32.
    Bf16,
}

impl Storage {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// What users call it: f32, f16 or bf16.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Storage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|storage| storage.name() == name);
        found.ok_or_else(|| format!("expected f32, f16 or bf16, got {name:?}"))
    }
}

/// What [`Attention::attend`] returns.
#[derive(Clone, Debug)]
pub struct Output {
    /// The attention output, `[query_heads, queries, value_dim]`.
    pub out: Array3<f32>,
    /// `ln D^`, the estimated log-sum-exp of the visible logits, `[query_heads, queries]`.
    pub log_denominator: Array2<f32>,
    /// One report per row, in (query, query head) order.
    pub rows: Vec<RowReport>,
    /// What was read, rows in the same order, when [`Options::return_selection`] is set.
    pub selection: Option<Selection>,
    /// Where the time went, when [`Options::timed`] is set and the backend can tell.
    pub timings: Option<Timings>,
}

/// Where the time of a call went, summed over KV heads on all threads. With several threads, a
/// waiting one may do a third's work, and both count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Selectors.
    pub select: Duration,
    /// Drawing and checking the sample, without reading its rows.
    pub sample: Duration,
    /// Reading rows of keys and values.
    pub attend: Duration,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.select += other.select;
        self.sample += other.sample;
        self.attend += other.attend;
    }
}
