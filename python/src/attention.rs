//! Attention of one layer, for one sequence or a batch of sequences.

use std::sync::{Arc, MutexGuard};

use numpy::ndarray::{ArrayView3, Axis, CowArray, Ix3, Ix4};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use vattention::experiments::{DenseBeside, RowError};
use vattention::{
    Attention as Sequence, Backend, BatchEntry, FallBack, Options, PipelineConfig, RowsView, Shape,
    Storage, TokenClass,
};

use crate::array::InputArray;
use crate::backends::find_backend;
use crate::error::{check_process, core, guarded};
use crate::exclusive::Exclusive;
use crate::output::{CheckedOutput, PyOutput};
use crate::pipeline::PyPipeline;

/// Number of queries between checks for Ctrl-C.
const QUERIES_PER_CHUNK: usize = 32;

/// One layer of one sequence, which owns its keys and values and attends with a pipeline.
///
/// `query_heads` is a multiple of `kv_heads`. `value_dim` defaults to `head_dim`. `sequence` and
/// the pipeline's seed are the key of the random samples. `scale` multiplies queries and defaults
/// to 1 / sqrt(head_dim). `storage` is the number type of stored keys and values: f32, f16,
/// bf16 or q8.
/// `threads` defaults to all cores; results do not depend on it. `backend` is cpu, reference or
/// cuda. `fall_back` decides when all tokens are read instead of the selected ones: never, by-count
/// (if a list is too long to be faster) or by-clock (if reading all tokens was faster before).
/// `return_selection` stores which tokens were read. `omit_error_bars` leaves out error bars that a
/// pipeline with a fixed sample size does not need. `free_evicted` frees tokens that the selectors
/// have evicted. `check` also computes dense attention and reports errors. `soft_cap` caps logits:
/// a scaled logit becomes `soft_cap * tanh(logit / soft_cap)`. `sink_logits` `[query_heads]` are
/// the logits of attention sinks that a model has learned: each adds its exponential to the
/// denominator.
///
/// Raises ValueError for an invalid shape, pipeline or option, and names it.
#[pyclass(frozen, name = "Attention", module = "vattention")]
pub(crate) struct PyAttention {
    backend: &'static dyn Backend,
    pipeline: Arc<PipelineConfig>,
    layer: Exclusive<Layer>,
}

/// A sequence, and dense attention over the same tokens if errors are to be reported.
struct Layer {
    sequence: Box<dyn Sequence>,
    dense: Option<DenseBeside>,
}

#[pymethods]
impl PyAttention {
    #[new]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Keywords in Python.
    #[pyo3(signature = (
        pipeline, query_heads, kv_heads, head_dim, value_dim = None, *, layer = 0, sequence = 0,
        scale = None, storage = "f32", threads = None, backend = "cpu", fall_back = "by-count",
        return_selection = false, omit_error_bars = false, free_evicted = false, check = false,
        soft_cap = None, sink_logits = None
    ))]
    fn new(
        py: Python<'_>,
        pipeline: &PyPipeline,
        query_heads: usize,
        kv_heads: usize,
        head_dim: usize,
        value_dim: Option<usize>,
        layer: usize,
        sequence: u32,
        scale: Option<f32>,
        storage: &str,
        threads: Option<usize>,
        backend: &str,
        fall_back: &str,
        return_selection: bool,
        omit_error_bars: bool,
        free_evicted: bool,
        check: bool,
        soft_cap: Option<f32>,
        sink_logits: Option<Vec<f32>>,
    ) -> PyResult<Self> {
        let value_dim = value_dim.unwrap_or(head_dim);
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        let options = Options {
            sequence,
            scale,
            soft_cap,
            sink_logits: sink_logits.map(Into::into),
            storage: parse_storage(storage)?,
            threads,
            return_selection,
            fall_back: parse_fall_back(fall_back)?,
            omit_error_bars,
            free_evicted,
            ..Options::default()
        };
        let backend = find_backend(backend)?;
        let pipeline = pipeline.config.clone();
        let start = || -> vattention::Result<Layer> {
            let sequence = backend.start(&pipeline, layer, shape, &options)?;
            let dense = check.then(|| DenseBeside::start(backend, layer, shape, &options));
            Ok(Layer { sequence, dense: dense.transpose()? })
        };
        let started = py.detach(|| guarded(start))?.map_err(core)?;
        Ok(Self::with_layer(backend, pipeline, started))
    }

    /// Appends keys `[kv_heads, new, head_dim]` and values `[kv_heads, new, value_dim]`, with
    /// rotary embeddings applied to the keys.
    ///
    /// Arrays of the type of `storage` are copied; other numbers are rounded to that type.
    /// `classes` `[new]` are the classes of the tokens in the text: 0 other, 1 punctuation, 2
    /// special. They are required if a selector depends on classes, and ignored otherwise.
    ///
    /// Cost: a copy, and the updates of the selectors' indexes. An error leaves the sequence
    /// unchanged: ValueError for a shape, for a number that is not finite or cannot be stored, and
    /// for classes that are missing, too few, too many or not 0, 1 or 2; TypeError for a type;
    /// MemoryError.
    #[pyo3(signature = (keys, values, classes = None))]
    fn append(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        classes: Option<Vec<i64>>,
    ) -> PyResult<()> {
        let classes = classes.map(|classes| parse_classes(&classes)).transpose()?;
        let (keys, values) = (InputArray::new("keys", keys)?, InputArray::new("values", values)?);
        let keys = keys.rows("[kv_heads, new, head_dim]")?;
        let values = values.rows("[kv_heads, new, value_dim]")?;
        self.run(py, |layer| layer.append(keys, values, classes.as_deref()))
    }

    /// Shows the selectors the last queries of a prompt that was processed elsewhere,
    /// `[query_heads, prompt, head_dim]`. The last query is that of the newest token.
    ///
    /// Raises the exceptions of `append`.
    fn observe(&self, py: Python<'_>, queries: &Bound<'_, PyAny>) -> PyResult<()> {
        let queries = InputArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> = queries.array("[query_heads, prompt, head_dim]")?;
        self.run(py, |layer| layer.sequence.observe(queries.view()))
    }

    /// Attends from queries `[query_heads, queries, head_dim]`, in order, one step each. Query `t`
    /// sees the first `visible[t]` tokens, at least 1, or all tokens without `visible`.
    ///
    /// Cost: the pipeline's cost, for each query. Other Python threads continue to run. An error
    /// leaves the sequence unchanged: ValueError for a shape, a limit or a number that is not
    /// finite, TypeError for a type, RuntimeError if the object is in use. Calls with more than 32
    /// queries are split into chunks of 32, and Ctrl-C takes effect between chunks. Steps of
    /// finished chunks remain then, and also after an error.
    #[pyo3(signature = (queries, visible = None))]
    fn attend(
        &self,
        py: Python<'_>,
        queries: &Bound<'_, PyAny>,
        visible: Option<Vec<usize>>,
    ) -> PyResult<PyOutput> {
        let queries = InputArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> = queries.array("[query_heads, queries, head_dim]")?;
        if let Some(visible) = visible.as_ref().filter(|v| v.len() != queries.dim().1) {
            let (expected, got) = (queries.dim().1, visible.len());
            return Err(PyValueError::new_err(format!(
                "visible: expected {expected}, one per query, got {got}"
            )));
        }
        let mut output: Option<CheckedOutput> = None;
        let mut first = 0;
        for chunk in queries.axis_chunks_iter(Axis(1), QUERIES_PER_CHUNK) {
            py.check_signals()?;
            let next = first + chunk.dim().1;
            let limits = visible.as_ref().map(|visible| &visible[first..next]);
            let more = self.run(py, |layer| layer.attend(chunk, limits))?;
            output = Some(match output {
                None => more,
                Some(output) => output.append(more),
            });
            first = next;
        }
        let attend_empty = || self.run(py, |layer| layer.attend(queries.view(), None));
        let output = output.map_or_else(attend_empty, Ok)?;
        Ok(PyOutput::new(py, output, self.pipeline.promise()))
    }

    /// Removes all but the first `tokens` tokens. The cost is that of appending the removed tokens.
    ///
    /// Raises ValueError if there are fewer tokens, and RuntimeError if a selector learns from
    /// steps; fork the sequence before such steps instead.
    fn truncate(&self, py: Python<'_>, tokens: usize) -> PyResult<()> {
        self.run(py, |layer| {
            layer.sequence.truncate(tokens)?;
            layer.dense.as_mut().map_or(Ok(()), |dense| dense.truncate(tokens))
        })
    }

    /// Returns an independent sequence that continues from the same tokens and step. A new
    /// `sequence` number makes its samples independent, too. Forks share memory.
    #[pyo3(signature = (sequence = None))]
    fn fork(&self, py: Python<'_>, sequence: Option<u32>) -> PyResult<Self> {
        let forked = self.run(py, |layer| {
            let dense = layer.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
            Ok(Layer { sequence: layer.sequence.fork(sequence)?, dense })
        })?;
        Ok(Self::with_layer(self.backend, self.pipeline.clone(), forked))
    }

    /// Returns a fork with the same samples, which continues as this sequence would.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.fork(py, None)
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        self.fork(py, None)
    }

    #[allow(clippy::unused_self)] // Python calls it as a method.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "an Attention cannot be saved: indexes and learned state exist only in memory; save \
             the keys and values that were appended to it, or copy it by fork() or copy.deepcopy",
        ))
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lock()?.sequence.len())
    }

    /// Bytes of the selectors' indexes, without keys and values.
    #[getter]
    fn index_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.sequence.index_bytes())
    }

    /// Bytes of the stored keys and values; tokens that were evicted and freed do not count.
    #[getter]
    fn held_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.sequence.held_bytes())
    }
}

impl PyAttention {
    fn with_layer(
        backend: &'static dyn Backend,
        pipeline: Arc<PipelineConfig>,
        layer: Layer,
    ) -> Self {
        let in_use = "this Attention is in use, by another thread or twice in one batch: \
                      expected one call at a time; fork it";
        Self { backend, pipeline, layer: Exclusive::new(layer, in_use) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Layer>> {
        self.layer.lock()
    }

    /// Calls `work` with the layer while other Python threads may run.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Layer) -> vattention::Result<T> + Send,
    ) -> PyResult<T> {
        self.layer.run(py, |layer| work(layer).map_err(core))
    }
}

impl Layer {
    fn append(
        &mut self,
        keys: RowsView<'_>,
        values: RowsView<'_>,
        classes: Option<&[TokenClass]>,
    ) -> vattention::Result<()> {
        self.sequence.append_rows(keys, values, classes)?;
        self.dense.as_mut().map_or(Ok(()), |dense| dense.append(keys, values))
    }

    fn attend(
        &mut self,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> vattention::Result<CheckedOutput> {
        let output = self.sequence.attend(queries, visible)?;
        self.add_errors(output, queries, visible)
    }

    /// Adds the errors from dense attention to an output, if they are to be reported.
    fn add_errors(
        &mut self,
        output: vattention::Output,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> vattention::Result<CheckedOutput> {
        let Some(dense) = &mut self.dense else {
            return Ok(CheckedOutput { output, errors: None });
        };
        let exact = dense.attend(queries, visible)?;
        let errors = exact
            .iter()
            .zip(rows_of(&output))
            .map(|(exact, (out, log_denominator))| RowError::new(out, log_denominator, exact));
        let errors = errors.collect();
        Ok(CheckedOutput { output, errors: Some(errors) })
    }
}

/// Converts numbers to classes.
pub(crate) fn parse_classes(numbers: &[i64]) -> PyResult<Vec<TokenClass>> {
    let class = |(i, &number): (usize, &i64)| {
        u8::try_from(number).ok().and_then(TokenClass::from_number).ok_or_else(|| {
            let expected = TokenClass::NUMBERS;
            PyValueError::new_err(format!("classes[{i}]: expected {expected}, got {number}"))
        })
    };
    numbers.iter().enumerate().map(class).collect()
}

/// Outputs and `ln D^`, in the order of (query, query head).
fn rows_of(
    output: &vattention::Output,
) -> impl Iterator<Item = (numpy::ndarray::ArrayView1<'_, f32>, f64)> {
    let by_query = output.out.axis_iter(Axis(1)).zip(output.log_denominator.axis_iter(Axis(1)));
    by_query.flat_map(|(out, logs)| {
        let heads = 0..out.dim().0;
        heads.map(move |head| (out.index_axis_move(Axis(0), head), f64::from(logs[head])))
    })
}

/// Appends to several sequences: keys `[sequences, kv_heads, new, head_dim]` and values
/// `[sequences, kv_heads, new, value_dim]`.
///
/// `classes` has the classes of `Attention.append` for each sequence.
///
/// Raises the exceptions of `Attention.append`; sequences before the failing one keep the new
/// tokens.
#[pyfunction]
#[pyo3(signature = (attentions, keys, values, classes = None))]
pub(crate) fn append_batch(
    py: Python<'_>,
    attentions: Vec<PyRef<'_, PyAttention>>,
    keys: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    classes: Option<Vec<Vec<i64>>>,
) -> PyResult<()> {
    let (keys, values) = (InputArray::new("keys", keys)?, InputArray::new("values", values)?);
    let keys: RowsView<'_, Ix4> = keys.rows("[sequences, kv_heads, new, head_dim]")?;
    let values: RowsView<'_, Ix4> = values.rows("[sequences, kv_heads, new, value_dim]")?;
    check_count("keys", keys.shape()[0], attentions.len())?;
    check_count("values", values.shape()[0], attentions.len())?;
    let classes: Option<Vec<Vec<TokenClass>>> = classes
        .map(|all| all.iter().map(|classes| parse_classes(classes)).collect())
        .transpose()?;
    if let Some(classes) = &classes {
        check_count("classes", classes.len(), attentions.len())?;
    }
    for (i, attention) in attentions.iter().enumerate() {
        let classes = classes.as_ref().map(|all| &all[i][..]);
        attention.run(py, |layer| layer.append(keys.index(i), values.index(i), classes))?;
    }
    Ok(())
}

/// Attends from several sequences in parallel: queries `[sequences, query_heads, queries,
/// head_dim]`, and limits for each sequence.
///
/// Raises the exceptions of `Attention.attend`, and ValueError if the sequences have different
/// backends.
#[pyfunction]
#[pyo3(signature = (attentions, queries, visible = None, *, threads = None))]
pub(crate) fn attend_batch(
    py: Python<'_>,
    attentions: Vec<PyRef<'_, PyAttention>>,
    queries: &Bound<'_, PyAny>,
    visible: Option<Vec<Vec<usize>>>,
    threads: Option<usize>,
) -> PyResult<Vec<PyOutput>> {
    check_process()?;
    let queries = InputArray::new("queries", queries)?;
    let shape = "[sequences, query_heads, queries, head_dim]";
    let queries: CowArray<'_, f32, Ix4> = queries.array(shape)?;
    check_count("queries", queries.dim().0, attentions.len())?;
    if let Some(visible) = &visible {
        check_count("visible", visible.len(), attentions.len())?;
    }
    let Some(backend) = attentions.first().map(|first| first.backend) else {
        return Ok(Vec::new());
    };
    if attentions.iter().any(|attention| attention.backend.name() != backend.name()) {
        return Err(PyValueError::new_err("attentions: expected all of one backend"));
    }
    let limits = |i: usize| visible.as_ref().map(|visible| &visible[i][..]);
    let all: Vec<&PyAttention> = attentions.iter().map(|attention| &**attention).collect();
    let checked = py.detach(|| {
        let mut layers =
            all.iter().map(|attention| attention.lock()).collect::<PyResult<Vec<_>>>()?;
        let turns = layers.iter_mut().zip(queries.outer_iter()).enumerate();
        let turns = turns.map(|(i, (layer, queries))| BatchEntry {
            attention: &mut *layer.sequence,
            queries,
            visible: limits(i),
        });
        let turns = turns.collect();
        let outputs = guarded(|| backend.attend_batch(turns, threads))?.map_err(core)?;
        let outputs = outputs.into_iter().zip(layers.iter_mut()).zip(queries.outer_iter());
        let checked = outputs.enumerate().map(|(i, ((output, layer), queries))| {
            output.and_then(|output| layer.add_errors(output, queries, limits(i))).map_err(core)
        });
        checked.collect::<PyResult<Vec<CheckedOutput>>>()
    })?;
    let convert = |(output, attention): (CheckedOutput, &&PyAttention)| {
        PyOutput::new(py, output, attention.pipeline.promise())
    };
    Ok(checked.into_iter().zip(&all).map(convert).collect())
}

fn check_count(name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name}: expected {expected} sequences, one per Attention, got {got}"
    )))
}

/// Parses a storage type.
pub(crate) fn parse_storage(name: &str) -> PyResult<Storage> {
    name.parse().map_err(|error| PyValueError::new_err(format!("storage: {error}")))
}

pub(crate) fn parse_fall_back(name: &str) -> PyResult<FallBack> {
    name.parse().map_err(|error| PyValueError::new_err(format!("fall_back: {error}")))
}
