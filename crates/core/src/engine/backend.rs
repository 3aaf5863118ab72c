//! The interface of a backend: its traits, options and outputs.

use std::fmt;
use std::ops::{AddAssign, Range};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use half::f16;
use ndarray::{Array2, Array3, ArrayView3};

use crate::{
    Result,
    engine::{AttentionState, KeyValueRows, Selection, SequencePoint},
    pipeline::{PipelineConfig, RowReport},
    step::{MAX_MAGNITUDE, RowsView, SCALE_BYTES, Shape, SoftmaxForm, TokenClass},
};

/// An implementation of attention that owns KV caches and runs pipelines.
pub trait Backend: Send + Sync {
    /// Name by which users choose the backend, such as `cpu`.
    fn name(&self) -> &str;

    /// Description in one line.
    fn summary(&self) -> &str;

    /// Checks that the backend can run on this machine.
    ///
    /// # Errors
    /// Returns [`Error::Backend`](crate::Error::Backend) with the reason if it cannot.
    fn available(&self) -> Result<()> {
        Ok(())
    }

    /// Creates the attention of one layer of one sequence, without any tokens yet.
    ///
    /// # Errors
    /// Returns an error that names the shape, pipeline or option that is not supported.
    fn start(
        &self,
        pipeline: &Arc<PipelineConfig>,
        layer: usize,
        shape: Shape,
        options: &Options,
    ) -> Result<Box<dyn Attention>>;

    /// Computes a step of many sequences in parallel, on `threads` threads (see
    /// [`Options::threads`]). The results equal those of successive calls of
    /// [`Attention::attend`], and are in the order of `batch`.
    ///
    /// # Errors
    /// Returns an error if the threads cannot be started; then nothing has changed. Errors of
    /// single sequences are in their own results.
    fn attend_batch(
        &self,
        batch: Vec<BatchEntry<'_>>,
        threads: Option<usize>,
    ) -> Result<Vec<Result<Output>>> {
        let _ = threads;
        Ok(batch.into_iter().map(BatchEntry::attend).collect())
    }

    /// Calls `steps` once, which computes steps of several layers on `threads` threads (see
    /// [`Options::threads`]). The threads do not sleep between the steps: a thread may take longer
    /// to wake than a KV head takes.
    ///
    /// # Errors
    /// Returns an error if the threads cannot be started; then `steps` has not been called.
    fn keep_awake(&self, threads: Option<usize>, steps: &mut (dyn FnMut() + Send)) -> Result<()> {
        let _ = threads;
        steps();
        Ok(())
    }
}

/// One sequence of a batch; see [`Backend::attend_batch`].
#[allow(missing_debug_implementations)]
pub struct BatchEntry<'a> {
    /// The sequence's attention.
    pub attention: &'a mut dyn Attention,
    /// Queries, `[query_heads, queries, head_dim]`.
    pub queries: ArrayView3<'a, f32>,
    /// Number of tokens that each query may read, `[queries]`; `None` means all tokens.
    pub visible: Option<&'a [usize]>,
}

impl BatchEntry<'_> {
    /// Calls [`Attention::attend`].
    ///
    /// # Errors
    /// Returns the errors of [`Attention::attend`].
    pub fn attend(self) -> Result<Output> {
        self.attention.attend(self.queries, self.visible)
    }
}

/// Attention of one layer of one sequence, which owns the keys and values.
pub trait Attention: Send {
    /// Appends keys `[kv_heads, new, head_dim]`, values `[kv_heads, new, value_dim]` and, if they
    /// are known, the tokens' classes, `[new]`. Users call [`append`](#method.append) or
    /// [`append_classed`](#method.append_classed) instead, which call this method.
    ///
    /// # Errors
    /// Returns an error for a wrong shape, a number that cannot be stored, a lack of memory, and
    /// missing classes that a selector needs ([`Error::Classes`](crate::Error::Classes)); then
    /// nothing has changed.
    fn append_rows(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> Result<()>;

    /// Passes the last queries of a processed prompt, `[query_heads, queries, head_dim]`, to the
    /// selectors. The last query belongs to the newest token. Selectors that learn from a prompt
    /// pick every token until this method is called ([`RowReport::unobserved`]). Such steps are not
    /// refused, because a sequence may begin without a prompt.
    ///
    /// # Errors
    /// Returns an error for a wrong shape or a number that is not finite; then nothing has changed.
    fn observe(&mut self, queries: ArrayView3<'_, f32>) -> Result<()>;

    /// Computes attention for queries `[query_heads, queries, head_dim]`, one decode step each, in
    /// order. Query `t` may read the first `visible[t]` tokens, or all tokens if `visible` is
    /// `None`.
    ///
    /// # Errors
    /// Returns an error for a wrong shape, a number that is not finite, or a number of visible
    /// tokens outside `1..=len`; then nothing has changed.
    fn attend(&mut self, queries: ArrayView3<'_, f32>, visible: Option<&[usize]>)
    -> Result<Output>;

    /// Removes all but the first `tokens` tokens. Selectors then pick as if the removed tokens had
    /// never been appended. The step number continues, so later samples are drawn anew. Selectors
    /// and samplers rebuild their indexes, which costs as much as appending the remaining tokens;
    /// after steps that check drafts, [`rewind`](Self::rewind) removes tokens in place.
    ///
    /// Selectors that learn from a prompt receive the [observed](Self::observe) queries of the
    /// remaining tokens again. If no such query remains, [`attend`](Self::attend) returns
    /// [`Error::Unobserved`](crate::Error::Unobserved) until another prompt is observed.
    ///
    /// # Errors
    /// Returns an error if there are fewer than `tokens` tokens, if a selector learns from steps
    /// ([`Error::Learns`](crate::Error::Learns)), or if evicted tokens have been freed
    /// ([`Error::Freed`](crate::Error::Freed)); then nothing has changed.
    fn truncate(&mut self, tokens: usize) -> Result<()>;

    /// Returns the point that the sequence has reached, for [`rewind`](Self::rewind).
    ///
    /// # Errors
    /// Returns [`Error::NoRewind`](crate::Error::NoRewind) with the name of a selector or sampler
    /// that cannot remove tokens in place.
    fn checkpoint(&self) -> Result<SequencePoint>;

    /// Returns to an earlier point, which must be after the last prompt. Later steps compute the
    /// same bits as if the sequence had never continued from there. The cost does not grow with the
    /// sequence, except on backends that index tokens on a device.
    ///
    /// # Errors
    /// Returns the errors of [`checkpoint`](Self::checkpoint), and an error if the sequence has not
    /// passed this point, has observed a prompt since, or may have [freed](Options::free_evicted)
    /// rows that were live there; then nothing has changed. If memory is lacking, the sequence is
    /// lost.
    fn rewind(&mut self, to: &SequencePoint) -> Result<()>;

    /// Returns a sequence that continues from the same tokens and step, independently of this one.
    /// A new `sequence` number makes its samples independent, too.
    ///
    /// # Errors
    /// Returns an error if the state cannot be copied, such as
    /// [`Error::Memory`](crate::Error::Memory).
    fn fork(&self, sequence: Option<u32>) -> Result<Box<dyn Attention>>;

    /// Returns a fork that equals a new sequence of this configuration with the same tokens and
    /// prompts. `None` means that there has been a step, or that the fork would need a new index;
    /// see [`Pipeline::adjust`](crate::Pipeline::adjust).
    ///
    /// # Errors
    /// Returns the errors of [`fork`](Self::fork).
    fn fork_adjusted(&self, pipeline: &Arc<PipelineConfig>) -> Result<Option<Box<dyn Attention>>> {
        let _ = pipeline;
        Ok(None)
    }

    /// Reads the stored keys of a range of tokens, `[kv_heads, range, head_dim]`, and their values,
    /// `[kv_heads, range, value_dim]`. Numbers of 16 bits are widened without rounding, so another
    /// sequence to which they are appended stores the same numbers.
    ///
    /// # Errors
    /// Returns an error if the range is outside of the tokens, or if rows of evicted tokens in the
    /// range have been freed ([`Error::Freed`](crate::Error::Freed)).
    fn read_rows(&self, tokens: Range<usize>) -> Result<KeyValueRows>;

    /// Returns the state of the sequence without its tokens, keys and values. Another sequence can
    /// [resume](Self::resume) it.
    ///
    /// # Errors
    /// Returns an error if a selector has learned from steps
    /// ([`Error::Learns`](crate::Error::Learns)).
    fn state(&self) -> Result<AttentionState>;

    /// Resumes the state of another sequence with the same pipeline. The caller must first append
    /// the tokens of that sequence and observe its prompts.
    ///
    /// # Errors
    /// Returns an error if the state belongs to another pipeline or shape; this sequence is then
    /// unchanged.
    fn resume(&mut self, state: &AttentionState) -> Result<()>;

    /// Number of tokens, including evicted ones.
    fn len(&self) -> usize;

    /// Size in bytes of the indexes of all KV heads, in selectors, samplers and the backend, for
    /// the tokens indexed so far. Keys and values do not count.
    fn index_bytes(&self) -> usize;

    /// Size in bytes of the stored keys and values, on the host and on a device, without spare
    /// capacity. Each fork counts the rows that it shares. Rows of evicted tokens that have been
    /// [freed](Options::free_evicted) do not count.
    fn held_bytes(&self) -> usize;

    /// Returns true if there is no token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl dyn Attention + '_ {
    /// Appends keys `[kv_heads, new, head_dim]` and values `[kv_heads, new, value_dim]`, given as
    /// views of arrays in f32, f16 or bf16. Numbers of the [storage](Options::storage) type are
    /// copied; others are rounded to it.
    ///
    /// # Errors
    /// Returns an error for a wrong shape, a number that cannot be stored, and a lack of memory,
    /// and [`Error::Classes`](crate::Error::Classes) if a selector needs
    /// [classes](#method.append_classed); then nothing has changed.
    pub fn append<'k, 'v>(
        &mut self,
        keys: impl Into<RowsView<'k>>,
        values: impl Into<RowsView<'v>>,
    ) -> Result<()> {
        self.append_rows(keys.into(), values.into(), None)
    }

    /// Appends keys and values like [`append`](#method.append), and the class of each token,
    /// `[new]`, which some selectors [need](PipelineConfig::needs_classes). Other pipelines ignore
    /// the classes.
    ///
    /// # Errors
    /// Returns the errors of [`append`](#method.append), and an error if the number of classes is
    /// not the number of tokens.
    pub fn append_classed<'k, 'v>(
        &mut self,
        keys: impl Into<RowsView<'k>>,
        values: impl Into<RowsView<'v>>,
        classes: &[TokenClass],
    ) -> Result<()> {
        self.append_rows(keys.into(), values.into(), Some(classes))
    }
}

/// Options of one sequence.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "switches that do not depend on each other")]
pub struct Options {
    /// Number of the sequence, one of the keys of its random samples.
    pub sequence: u32,
    /// Softmax scale, by which queries are multiplied; `None` means `1 / √head_dim`.
    pub scale: Option<f32>,
    /// Cap of the logits, from 1e-16 to 1e16: a scaled logit becomes `cap · tanh(logit / cap)`.
    /// `None` leaves logits unchanged.
    pub soft_cap: Option<f32>,
    /// Logits of the attention sinks that a model has learned, `[query_heads]`; finite, neither
    /// scaled nor capped. Each adds `e^sink` to the denominator of its query head, and nothing to
    /// the numerator.
    pub sink_logits: Option<Arc<[f32]>>,
    /// Number type of the stored keys and values.
    pub storage: Storage,
    /// Memory in which a device keeps keys and values.
    pub placement: Placement,
    /// Size of the memory pages that hold keys and values on the host.
    pub page_size: PageSize,
    /// Number of threads; `None` leaves the choice to the backend. Results do not depend on it.
    pub threads: Option<usize>,
    /// If true, outputs carry the [`Selection`].
    pub return_selection: bool,
    /// Number of the first step: the number of the sequence's queries that were processed
    /// elsewhere. Random numbers are keyed by the step's number. A pipeline that
    /// [depends on earlier steps](crate::Pipeline::depends_on_earlier_steps) begins as if there
    /// had been none.
    pub first_step: u32,
    /// Condition under which every token is read instead of the pipeline's choice.
    pub fall_back: FallBack,
    /// If true, samples of a given `size` are not checked: steps are faster, and rows have no
    /// error bar.
    pub omit_error_bars: bool,
    /// If true, outputs carry [`Timings`].
    pub timed: bool,
    /// If true, keys and values of evicted tokens are freed after prompts and after calls of
    /// [`attend`](Attention::attend), 16 tokens at a time. This has an effect only if all
    /// selectors evict tokens ([`Selector::live`](crate::plugin::Selector::live)) and there is no
    /// sampler. Then a query must see at least as many tokens as the queries before it, tokens can
    /// no longer be [truncated](Attention::truncate), and no step falls back to reading every
    /// token. Rows on a device are not freed.
    pub free_evicted: bool,
    /// Number of newest tokens that [`rewind`](Attention::rewind) can remove although evicted
    /// tokens are [freed](Self::free_evicted): a row is freed this number of tokens later.
    pub rewindable: usize,
}

impl Options {
    /// Form of the softmax of all query heads.
    pub fn softmax_form(&self) -> SoftmaxForm<'_> {
        SoftmaxForm { soft_cap: self.soft_cap, sink_logits: self.sink_logits.as_deref() }
    }
}

/// Condition under which every token is read instead of a pipeline's choice, because that is
/// faster. The output is then exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallBack {
    /// Never: every step follows the pipeline's choice, as measurements of a pipeline require.
    Never,
    /// If a token list and the checks of its sample cost more than reading all rows, counted in
    /// rows by a fixed rule. Every machine reads the same tokens. The time of selectors and
    /// samplers before the first row is read does not count.
    #[default]
    ByCount,
    /// Under the condition of `ByCount`, and also if reading every token took less time in earlier
    /// steps of the sequence. The tokens read depend on the machine and its load, so outputs
    /// cannot be reproduced to the last digit. Only the `cpu` backend measures times; other
    /// backends use `ByCount`.
    ByClock,
}

impl FallBack {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Never, Self::ByCount, Self::ByClock];

    /// Name in options: `never`, `by-count` or `by-clock`.
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

/// Memory in which a device keeps keys and values. Backends in host memory ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The device's own memory.
    #[default]
    Device,
    /// Host memory, which has room for longer contexts. The device fetches the rows that it reads
    /// over the bus.
    Host,
}

/// Size of the memory pages that hold keys and values on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// Huge pages, if the system has any: gathered rows are read faster.
    #[default]
    Huge,
    /// Pages of the system's ordinary size, for comparison.
    Small,
}

/// Number type in which a cache stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// 4 bytes per number; inputs are stored exactly.
    #[default]
    F32,
    /// 2 bytes per number, 11 bits of precision, magnitudes up to 65504.
    F16,
    /// 2 bytes per number, 8 bits of precision, the range of f32.
    Bf16,
    /// 1 byte per number, and 4 bytes per key and per value: integers of −127 to 127, and a scale
    /// of about `max |x| / 127` for each row of one KV head. Errors of a row are at most half of
    /// its scale. Promises hold relative to attention over the stored rows, like those over 16
    /// bits.
    Q8,
}

impl Storage {
    /// All types.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8];

    /// Types of which each number is stored by itself, without a scale of its row.
    pub const FLOATS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Largest magnitude that can be stored.
    pub fn largest(self) -> f32 {
        match self {
            // A scale of 8-bit integers is below the largest number of its row.
            Self::F32 | Self::Bf16 | Self::Q8 => MAX_MAGNITUDE,
            Self::F16 => f16::MAX.to_f32(),
        }
    }

    /// Size of a number in bytes, without the scale of its row.
    pub const fn number_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q8 => 1,
        }
    }

    /// Size of a scale in bytes; 0 if rows have no scales.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q8 => SCALE_BYTES,
        }
    }

    /// Size of a key or a value of `dim` numbers in bytes, with its scale. It saturates.
    pub const fn row_bytes(self, dim: usize) -> usize {
        dim.saturating_mul(self.number_bytes()).saturating_add(self.scale_bytes())
    }

    /// Name in options: `f32`, `f16`, `bf16` or `q8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
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
        found.ok_or_else(|| format!("expected f32, f16, bf16 or q8, got {name:?}"))
    }
}

/// Output of [`Attention::attend`].
#[derive(Clone, Debug)]
pub struct Output {
    /// The attention output, `[query_heads, queries, value_dim]`.
    pub out: Array3<f32>,
    /// `ln D^`, the estimated log-sum-exp of the visible logits, and of the attention sink's logit
    /// if there is one, `[query_heads, queries]`.
    pub log_denominator: Array2<f32>,
    /// Reports of the rows, in (query, query head) order.
    pub rows: Vec<RowReport>,
    /// Tokens read by each row, in the order of `rows`, if [`Options::return_selection`] is set.
    pub selection: Option<Selection>,
    /// Times of the parts of the call, if [`Options::timed`] is set and the backend measures
    /// them.
    pub timings: Option<Timings>,
}

impl Output {
    /// Creates an output without rows, selection and times, for `[query_heads, queries,
    /// value_dim]`.
    pub fn zeros(shape: [usize; 3]) -> Self {
        let [heads, queries, _] = shape;
        Self {
            out: Array3::zeros(shape),
            log_denominator: Array2::zeros((heads, queries)),
            rows: Vec::with_capacity(heads * queries),
            selection: None,
            timings: None,
        }
    }
}

/// Times of the parts of a call, summed over KV heads on all threads. With several threads, a
/// thread that waits may do other work meanwhile, which then counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time spent in selectors.
    pub select: Duration,
    /// Time for drawing and checking samples, without reading their rows.
    pub sample: Duration,
    /// Time for reading rows of keys and values.
    pub attend: Duration,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.select += other.select;
        self.sample += other.sample;
        self.attend += other.attend;
    }
}
