//! Attention of one layer over the pool of an engine, for many sequences.

mod batch;
mod pool;
mod sequences;
mod share;
mod table;
mod write;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use numpy::ndarray::{CowArray, Ix3};
use pyo3::prelude::*;
use vattention::backends::{Cpu, EngineHead};
use vattention::{Options, Promise, RowsView, Shape, TokenClass};

use self::batch::{SequenceBatch, check_count, check_queries};
use self::pool::{PoolArrays, check_dim};
use self::sequences::Sequences;
use self::write::{check_new, parse_slots, write_rows};
use crate::array::InputArray;
use crate::attention::{parse_classes, parse_fall_back};
use crate::error::{core, guarded};
use crate::exclusive::Exclusive;
use crate::output::{CheckedOutput, PyOutput};
use crate::pipeline::PyPipeline;

/// The backend whose threads all layers share.
static CPU: LazyLock<Cpu> = LazyLock::new(Cpu::default);

/// One layer of an engine's sequences, whose keys and values are in the engine's pool.
///
/// It has the indexes of the selectors, counts tokens and steps of each sequence, and reads the
/// pool in place. A sequence is a number from 0 to 2**32 - 1 that the engine chooses, and which is
/// also a key of its random samples. Results equal those of `Attention` with the same `sequence`
/// and a `storage` of the pool's type.
///
/// Each call borrows `pool`: an array `[blocks, kv_heads, block, head_dim + value_dim]`, or a tuple
/// of keys `[blocks, kv_heads, block, head_dim]` and values `[blocks, kv_heads, block, value_dim]`,
/// in float32, float16 or bfloat16. Views may transpose other layouts to this one, if the numbers
/// of a row are side by side. Token `t` of sequence `i` is row `t % block` of block
/// `block_tables[i, t // block]`. Further entries of the table are not read. Blocks may be shared,
/// moved and used again, because indexes follow the positions of tokens. While a call runs, the
/// engine must not write to the blocks of its sequences.
///
/// `sequences` `[sequences]`, `block_tables` `[sequences, blocks]` and `lengths` `[sequences]`, the
/// numbers of tokens, are int32, int64 or uint32 in arrays, tensors or lists.
///
/// `query_heads` is a multiple of `kv_heads`, `head_dim` and `value_dim` are multiples of 32, and
/// `value_dim` defaults to `head_dim`. Options are those of `Attention`; `fall_back` by-clock acts
/// like by-count.
///
/// With `share_index`, a new sequence takes over the index of the tokens that it has in common with
/// another one, such as the blocks of a cached prefix. The longest prefix is taken, in whole blocks
/// of 64 tokens, whose rows equal those that the other sequence has indexed, by checksums. The
/// memory is shared until the last of the sequences is freed, and results are the same. To keep the
/// index of a prefix whose sequences have ended, `fork` one of them under a number of its own. If a
/// selector or the sampler has an index that serves one sequence only, because it clusters keys or
/// learns from prompts or steps, ValueError names it.
///
/// Any thread may make calls, one at a time: a second one meanwhile raises RuntimeError. Other
/// Python threads continue to run. A call that raises an exception changes nothing. Only after an
/// exception of a selector that is written in Python, sequences of the call must be freed.
///
/// Raises ValueError for an invalid shape, pipeline or option, and names it. Promises with
/// `reference = "unrounded"` are refused, because the rows before rounding are unknown.
#[pyclass(frozen, name = "PagedAttention", module = "vattention")]
pub(crate) struct PyPagedAttention {
    shape: Shape,
    promise: Option<Promise>,
    sequences: Exclusive<Sequences>,
}

#[pymethods]
impl PyPagedAttention {
    #[new]
    #[allow(clippy::too_many_arguments)] // Keywords in Python.
    #[pyo3(signature = (
        pipeline, query_heads, kv_heads, head_dim, value_dim = None, *, layer = 0, scale = None,
        threads = None, fall_back = "by-count", omit_error_bars = false, soft_cap = None,
        sink_logits = None, share_index = false
    ))]
    fn new(
        py: Python<'_>,
        pipeline: &PyPipeline,
        query_heads: usize,
        kv_heads: usize,
        head_dim: usize,
        value_dim: Option<usize>,
        layer: usize,
        scale: Option<f32>,
        threads: Option<usize>,
        fall_back: &str,
        omit_error_bars: bool,
        soft_cap: Option<f32>,
        sink_logits: Option<Vec<f32>>,
        share_index: bool,
    ) -> PyResult<Self> {
        let value_dim = value_dim.unwrap_or(head_dim);
        check_dim("head_dim", head_dim)?;
        check_dim("value_dim", value_dim)?;
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        let options = Options {
            scale,
            soft_cap,
            sink_logits: sink_logits.map(Into::into),
            fall_back: parse_fall_back(fall_back)?,
            omit_error_bars,
            ..Options::default()
        };
        let config = &pipeline.config;
        let start = || -> vattention::Result<Sequences> {
            shape.check()?;
            let head = |kv_head| EngineHead::new(config, layer, kv_head, shape, &options);
            let empty = (0..kv_heads).map(head).collect::<Result<Vec<_>, _>>()?;
            if share_index {
                empty.iter().try_for_each(EngineHead::check_shareable)?;
            }
            Ok(Sequences::new(empty, CPU.workers(threads)?, share_index))
        };
        let sequences = py.detach(|| guarded(start))?.map_err(core)?;
        let in_use = "this PagedAttention is in use by another thread: \
                      expected one call at a time";
        let sequences = Exclusive::new(sequences, in_use);
        Ok(Self { shape, promise: config.promise(), sequences })
    }

    /// Writes keys `[kv_heads, new, head_dim]` and values `[kv_heads, new, value_dim]` to the pool,
    /// rounded to its type, with rotary embeddings applied to the keys.
    ///
    /// `slot_mapping` `[new]` has the slot of each token: row `slot % block` of block
    /// `slot // block`. Tokens with -1 are skipped. An engine that writes rows itself does not need
    /// this call. No index changes before `append`.
    ///
    /// Raises ValueError for a shape, for a slot that is not in the pool, for a number that is not
    /// finite or cannot be stored, and for a pool that is read-only; TypeError for a type.
    fn write(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyAny>,
        slot_mapping: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (keys, values) = (InputArray::new("keys", keys)?, InputArray::new("values", values)?);
        let keys: RowsView<'_> = keys.rows("[kv_heads, new, head_dim]")?;
        let values: RowsView<'_> = values.rows("[kv_heads, new, value_dim]")?;
        let pool = PoolArrays::new(pool)?;
        pool.check_writable()?;
        let pool = pool.borrow(self.shape)?;
        let slots = parse_slots(slot_mapping, &pool)?;
        check_new(keys.shape(), values.shape(), slots.len(), self.shape)?;
        // SAFETY: the arrays of the pool are writable, and the engine passes them to be written.
        #[allow(unsafe_code)]
        py.detach(|| guarded(|| unsafe { write_rows(keys, values, &pool, &slots) }))?
    }

    /// Indexes the tokens up to `lengths` that have not been indexed, from their rows in the pool.
    /// An unknown sequence begins with this call.
    ///
    /// `classes` are those of `Attention.append` for the new tokens of each sequence, which
    /// pipelines with `needs_classes` require.
    ///
    /// Cost: the updates of the selectors' indexes. Raises ValueError for a shape, for fewer tokens
    /// than before, for a block that is not in the pool, for a number that is not finite or too
    /// large, and for classes; TypeError for a type.
    #[pyo3(signature = (sequences, pool, block_tables, lengths, classes = None))]
    fn append(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        classes: Option<Vec<Vec<i64>>>,
    ) -> PyResult<()> {
        let pool = PoolArrays::new(pool)?;
        let pool = pool.borrow(self.shape)?;
        let batch = SequenceBatch::new(sequences, block_tables, lengths, &pool)?;
        let classes: Option<Vec<Vec<TokenClass>>> = classes
            .map(|all| all.iter().map(|classes| parse_classes(classes)).collect())
            .transpose()?;
        if let Some(classes) = &classes {
            check_count("classes", classes.len(), batch.sequences.len())?;
        }
        self.sequences.run(py, |sequences| sequences.append(&batch, &pool, classes.as_deref()))
    }

    /// Shows the selectors the last queries of a sequence's prompt, `[query_heads, prompt,
    /// head_dim]`, for pipelines with `needs_observe`. The last query is that of the newest token.
    /// `block_table` is `[blocks]`, and `length` the number of tokens, all of which must have been
    /// appended.
    ///
    /// Raises ValueError for an unknown sequence, a shape, a length, a block that is not in the
    /// pool and a number that is not finite; TypeError for a type.
    fn observe(
        &self,
        py: Python<'_>,
        sequence: u32,
        queries: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyAny>,
        block_table: &Bound<'_, PyAny>,
        length: i64,
    ) -> PyResult<()> {
        let queries = InputArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> = queries.array("[query_heads, prompt, head_dim]")?;
        let pool = PoolArrays::new(pool)?;
        let pool = pool.borrow(self.shape)?;
        let batch = SequenceBatch::single(sequence, block_table, length, &pool)?;
        check_queries(queries.shape(), queries.dim().1, self.shape)?;
        self.sequences.run(py, |sequences| sequences.observe(&batch, &pool, queries.view()))
    }

    /// Attends from one query of each sequence, `[query_heads, sequences, head_dim]`, to its first
    /// `lengths` tokens, which must be the tokens that have been appended: one step of each.
    ///
    /// Returns the outputs in the order of `sequences`: `out` is `[query_heads, sequences,
    /// value_dim]`, and `query` in a report is the position of the sequence in the batch.
    ///
    /// Cost: the pipeline's cost for each sequence; KV heads of all sequences run in parallel.
    /// Raises ValueError for an unknown sequence, a shape, a length, a block that is not in the
    /// pool and a number that is not finite; RuntimeError if a selector lacks its prompt; TypeError
    /// for a type.
    fn attend(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        queries: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<PyOutput> {
        let queries = InputArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> =
            queries.array("[query_heads, sequences, head_dim]")?;
        let pool = PoolArrays::new(pool)?;
        let pool = pool.borrow(self.shape)?;
        let batch = SequenceBatch::new(sequences, block_tables, lengths, &pool)?;
        check_queries(queries.shape(), batch.sequences.len(), self.shape)?;
        let output =
            self.sequences.run(py, |sequences| sequences.attend(&batch, &pool, queries.view()))?;
        Ok(PyOutput::new(py, CheckedOutput { output, errors: None }, self.promise))
    }

    /// Starts the sequence `new` from the tokens and the step of `sequence`. Its indexes are
    /// copied, apart from those that `share_index` can share. The engine may give it the same
    /// blocks. Its samples are independent.
    ///
    /// Raises ValueError if `sequence` is unknown or `new` exists.
    fn fork(&self, py: Python<'_>, sequence: u32, new: u32) -> PyResult<()> {
        self.sequences.run(py, |sequences| sequences.fork(sequence, new))
    }

    /// Removes all but the first `lengths` tokens of each sequence from the indexes. Later samples
    /// are drawn anew.
    ///
    /// Raises ValueError for an unknown sequence, for fewer tokens, for a prompt that was observed
    /// and ends later, and with the name of a selector or sampler that cannot remove tokens (see
    /// `can_truncate`); then `free` the sequence and append the remaining tokens again.
    fn truncate(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        pool: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let pool = PoolArrays::new(pool)?;
        let pool = pool.borrow(self.shape)?;
        let batch = SequenceBatch::new(sequences, block_tables, lengths, &pool)?;
        self.sequences.run(py, |sequences| sequences.truncate(&batch, &pool))
    }

    /// Ends a sequence and frees its indexes. The number may be used again.
    ///
    /// Raises ValueError if the sequence is unknown.
    fn free(&self, py: Python<'_>, sequence: u32) -> PyResult<()> {
        self.sequences.run(py, |sequences| sequences.free(sequence))
    }

    /// Number of appended tokens of each sequence.
    #[getter]
    fn lengths(&self) -> PyResult<BTreeMap<u32, usize>> {
        Ok(self.sequences.lock()?.lengths())
    }

    /// Bytes of the selectors' indexes of all sequences. Shared memory counts once.
    #[getter]
    fn index_bytes(&self) -> PyResult<usize> {
        Ok(self.sequences.lock()?.index_bytes())
    }

    /// True if appended tokens must have classes.
    #[getter]
    fn needs_classes(&self) -> PyResult<bool> {
        Ok(self.sequences.lock()?.first_head().needs_classes())
    }

    /// True if the last queries of a prompt must be observed before the first step.
    #[getter]
    fn needs_observe(&self) -> PyResult<bool> {
        Ok(self.sequences.lock()?.first_head().needs_prompt())
    }

    /// True if tokens can be removed from the indexes.
    #[getter]
    fn can_truncate(&self) -> PyResult<bool> {
        Ok(self.sequences.lock()?.first_head().can_truncate())
    }
}
