//! Attention of one layer of one sequence, and of several at once.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use numpy::ndarray::{ArrayView3, Axis, CowArray, Ix3, Ix4};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use vattention::experiments::{DenseBeside, RowError};
use vattention::{
    Attention as Sequence, Backend, FallBack, Options, PipelineConfig, RowsView, Shape, Storage,
    TokenClass, Turn,
};

use crate::array::GivenArray;
use crate::backends::find_backend;
use crate::error::{check_process, core, guarded};
use crate::output::{Answer, Output};
use crate::pipeline::Pipeline;

/// Queries that are answered before Ctrl-C is looked for.
const QUERIES_AT_ONCE: usize = 32;

/// One layer of one sequence: owns its keys and values, and attends by a pipeline.
///
/// Query heads are a multiple of KV heads; `value_dim` is `head_dim` if it is not given. `sequence` and the pipeline's seed key the
/// random samples. `scale` multiplies queries, by default 1 / sqrt(head_dim). `storage` rounds what is stored: f32, f16 or bf16.
/// `threads` are all cores by default; results do not depend on them. `backend` is cpu, reference or cuda. `fall_back` says when
/// everything is read in place of what was chosen: never, by-count (where a list is too long to be faster), by-clock (where that has
/// been faster). `return_selection` keeps what was read, `omit_error_bars` leaves out bars that a pipeline with a fixed sample need not
/// compute, `check` attends densely beside and reports errors.
///
/// Raises ValueError for a shape, a pipeline or an option that cannot work, by name.
#[pyclass(frozen, module = "vattention")]
pub(crate) struct Attention {
    backend: &'static dyn Backend,
    pipeline: Arc<PipelineConfig>,
    layer: Mutex<Layer>,
}

/// A sequence, and dense attention to it if it is to be checked.
struct Layer {
    sequence: Box<dyn Sequence>,
    dense: Option<DenseBeside>,
}

#[pymethods]
impl Attention {
    #[new]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // Keywords in Python.
    #[pyo3(signature = (
        pipeline, query_heads, kv_heads, head_dim, value_dim = None, *, layer = 0, sequence = 0, scale = None, storage = "f32",
        threads = None, backend = "cpu", fall_back = "by-count", return_selection = false, omit_error_bars = false,
        free_evicted = false, check = false
    ))]
    fn new(
        py: Python<'_>,
        pipeline: &Pipeline,
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
    ) -> PyResult<Self> {
        let value_dim = value_dim.unwrap_or(head_dim);
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        let options = Options {
            sequence,
            scale,
            storage: storage_named(storage)?,
            threads,
            return_selection,
            fall_back: fall_back_named(fall_back)?,
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
        Ok(Self { backend, pipeline, layer: Mutex::new(started) })
    }

    /// Appends keys `[kv_heads, new, head_dim]` and values `[kv_heads, new, value_dim]`, keys after their rotary embedding.
    ///
    /// Arrays of the type of `storage` are copied as they are; numbers of others become the nearest ones of it. `classes` say what each
    /// token is in the text, `[new]`: 0 other, 1 punctuation, 2 special. Pipelines whose selectors depend on classes need them, others ignore them.
    ///
    /// Cost: a copy, and what the selectors' indexes need. An error leaves everything as it was: ValueError for a shape, for a number that
    /// is not finite or cannot be stored, or for classes that are missing, too few or too many, or not 0, 1 or 2, TypeError for a type, MemoryError.
    #[pyo3(signature = (keys, values, classes = None))]
    fn append(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        classes: Option<Vec<i64>>,
    ) -> PyResult<()> {
        let classes = classes.map(|classes| classes_of(&classes)).transpose()?;
        let (keys, values) = (GivenArray::new("keys", keys)?, GivenArray::new("values", values)?);
        let keys = keys.rows("[kv_heads, new, head_dim]")?;
        let values = values.rows("[kv_heads, new, value_dim]")?;
        self.run(py, |layer| layer.append(keys, values, classes.as_deref()))
    }

    /// Shows the selectors the last queries of a prompt that was processed elsewhere, `[query_heads, prompt, head_dim]`; the last is the
    /// newest token's.
    ///
    /// Raises as `append`.
    fn observe(&self, py: Python<'_>, queries: &Bound<'_, PyAny>) -> PyResult<()> {
        let queries = GivenArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> = queries.array("[query_heads, prompt, head_dim]")?;
        self.run(py, |layer| layer.sequence.observe(queries.view()))
    }

    /// Attends from queries `[query_heads, queries, head_dim]`, in order, one step each. Query `t` reads the first `visible[t]` tokens,
    /// 1 to all, or all.
    ///
    /// Cost: the pipeline, for each query. Other Python threads go on meanwhile. An error leaves everything as it was: ValueError for a
    /// shape, a limit or a number that is not finite, TypeError for a type, RuntimeError if the object is in use. A call of more than 32 queries
    /// is made in parts of 32, between which Ctrl-C ends it; steps of parts that are done stay done then, and after an error.
    #[pyo3(signature = (queries, visible = None))]
    fn attend(
        &self,
        py: Python<'_>,
        queries: &Bound<'_, PyAny>,
        visible: Option<Vec<usize>>,
    ) -> PyResult<Output> {
        let queries = GivenArray::new("queries", queries)?;
        let queries: CowArray<'_, f32, Ix3> = queries.array("[query_heads, queries, head_dim]")?;
        if let Some(visible) = visible.as_ref().filter(|v| v.len() != queries.dim().1) {
            let (expected, got) = (queries.dim().1, visible.len());
            return Err(PyValueError::new_err(format!(
                "visible: expected {expected}, one per query, got {got}"
            )));
        }
        let mut answer: Option<Answer> = None;
        let mut first = 0;
        for some in queries.axis_chunks_iter(Axis(1), QUERIES_AT_ONCE) {
            py.check_signals()?;
            let next = first + some.dim().1;
            let limits = visible.as_ref().map(|visible| &visible[first..next]);
            let more = self.run(py, |layer| layer.attend(some, limits))?;
            answer = Some(match answer {
                None => more,
                Some(answer) => answer.and(more),
            });
            first = next;
        }
        let none = || self.run(py, |layer| layer.attend(queries.view(), None));
        Ok(Output::new(py, answer.map_or_else(none, Ok)?, self.pipeline.promise()))
    }

    /// Takes back all but the first `tokens` tokens, which costs what appending those did.
    ///
    /// Raises ValueError if there are fewer, RuntimeError if a selector learns from steps: fork before.
    fn truncate(&self, py: Python<'_>, tokens: usize) -> PyResult<()> {
        self.run(py, |layer| {
            layer.sequence.truncate(tokens)?;
            layer.dense.as_mut().map_or(Ok(()), |dense| dense.truncate(tokens))
        })
    }

    /// A sequence that goes on from the same tokens and step, independently. A new `sequence` number makes its samples independent, too.
    /// Forks share memory.
    #[pyo3(signature = (sequence = None))]
    fn fork(&self, py: Python<'_>, sequence: Option<u32>) -> PyResult<Self> {
        let forked = self.run(py, |layer| {
            let dense = layer.dense.as_ref().map(|dense| dense.fork(sequence)).transpose()?;
            Ok(Layer { sequence: layer.sequence.fork(sequence)?, dense })
        })?;
        let pipeline = self.pipeline.clone();
        Ok(Self { backend: self.backend, pipeline, layer: Mutex::new(forked) })
    }

    /// Returns a fork with the same samples, which continues as this one would.
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

    /// Bytes that selectors keep beside keys and values.
    #[getter]
    fn index_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.sequence.index_bytes())
    }

    /// Bytes of the keys and values that it holds; fewer than were appended, if evicted tokens are freed.
    #[getter]
    fn held_bytes(&self) -> PyResult<usize> {
        Ok(self.lock()?.sequence.held_bytes())
    }
}

impl Attention {
    /// The layer, which nobody else may be using.
    fn lock(&self) -> PyResult<MutexGuard<'_, Layer>> {
        match self.layer.try_lock() {
            Ok(layer) => Ok(layer),
            // What a panic leaves is whole, or the library knows that it is lost.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "this Attention is in use, by another thread or twice in one batch: expected one call at a time; fork it",
            )),
        }
    }

    /// Works with the layer, without holding up other Python threads.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Layer) -> vattention::Result<T> + Send,
    ) -> PyResult<T> {
        check_process()?;
        py.detach(|| {
            let mut layer = self.lock()?;
            guarded(|| work(&mut layer))?.map_err(core)
        })
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
    ) -> vattention::Result<Answer> {
        let output = self.sequence.attend(queries, visible)?;
        self.checked(output, queries, visible)
    }

    /// An output, beside dense attention if that is asked for.
    fn checked(
        &mut self,
        output: vattention::Output,
        queries: ArrayView3<'_, f32>,
        visible: Option<&[usize]>,
    ) -> vattention::Result<Answer> {
        let Some(dense) = &mut self.dense else { return Ok(Answer { output, errors: None }) };
        let exact = dense.attend(queries, visible)?;
        let errors = exact
            .iter()
            .zip(rows_of(&output))
            .map(|(exact, (out, log_denominator))| RowError::new(out, log_denominator, exact));
        let errors = errors.collect();
        Ok(Answer { output, errors: Some(errors) })
    }
}

/// Classes of their numbers.
pub(crate) fn classes_of(numbers: &[i64]) -> PyResult<Vec<TokenClass>> {
    let class = |(i, &number): (usize, &i64)| {
        u8::try_from(number).ok().and_then(TokenClass::from_number).ok_or_else(|| {
            let expected = TokenClass::NUMBERS;
            PyValueError::new_err(format!("classes[{i}]: expected {expected}, got {number}"))
        })
    };
    numbers.iter().enumerate().map(class).collect()
}

/// Outputs and `ln D^` in (query, query head) order.
fn rows_of(
    output: &vattention::Output,
) -> impl Iterator<Item = (numpy::ndarray::ArrayView1<'_, f32>, f64)> {
    let by_query = output.out.axis_iter(Axis(1)).zip(output.log_denominator.axis_iter(Axis(1)));
    by_query.flat_map(|(out, logs)| {
        let heads = 0..out.dim().0;
        heads.map(move |head| (out.index_axis_move(Axis(0), head), f64::from(logs[head])))
    })
}

/// Appends to several sequences: keys `[sequences, kv_heads, new, head_dim]` and values `[sequences, kv_heads, new, value_dim]`.
///
/// `classes` are those of `Attention.append`, of each sequence.
///
/// Raises as `Attention.append`; then sequences before the one at fault have theirs.
#[pyfunction]
#[pyo3(signature = (attentions, keys, values, classes = None))]
pub(crate) fn append_batch(
    py: Python<'_>,
    attentions: Vec<PyRef<'_, Attention>>,
    keys: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    classes: Option<Vec<Vec<i64>>>,
) -> PyResult<()> {
    let (keys, values) = (GivenArray::new("keys", keys)?, GivenArray::new("values", values)?);
    let keys: RowsView<'_, Ix4> = keys.rows("[sequences, kv_heads, new, head_dim]")?;
    let values: RowsView<'_, Ix4> = values.rows("[sequences, kv_heads, new, value_dim]")?;
    check_count("keys", keys.shape()[0], attentions.len())?;
    check_count("values", values.shape()[0], attentions.len())?;
    let classes: Option<Vec<Vec<TokenClass>>> =
        classes.map(|all| all.iter().map(|one| classes_of(one)).collect()).transpose()?;
    if let Some(classes) = &classes {
        check_count("classes", classes.len(), attentions.len())?;
    }
    for (i, attention) in attentions.iter().enumerate() {
        let classes = classes.as_ref().map(|all| &all[i][..]);
        attention.run(py, |layer| layer.append(keys.index(i), values.index(i), classes))?;
    }
    Ok(())
}

/// Lets several sequences attend at once: queries `[sequences, query_heads, queries, head_dim]`, and limits for each.
///
/// Raises as `Attention.attend`; ValueError if the sequences are not of one backend.
#[pyfunction]
#[pyo3(signature = (attentions, queries, visible = None, *, threads = None))]
pub(crate) fn attend_batch(
    py: Python<'_>,
    attentions: Vec<PyRef<'_, Attention>>,
    queries: &Bound<'_, PyAny>,
    visible: Option<Vec<Vec<usize>>>,
    threads: Option<usize>,
) -> PyResult<Vec<Output>> {
    check_process()?;
    let queries = GivenArray::new("queries", queries)?;
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
    let all: Vec<&Attention> = attentions.iter().map(|attention| &**attention).collect();
    let answered = py.detach(|| {
        let mut layers = all.iter().map(|one| one.lock()).collect::<PyResult<Vec<_>>>()?;
        let turns = layers.iter_mut().zip(queries.outer_iter()).enumerate();
        let turns = turns.map(|(i, (layer, queries))| Turn {
            attention: &mut *layer.sequence,
            queries,
            visible: limits(i),
        });
        let turns = turns.collect();
        let outputs = guarded(|| backend.attend_batch(turns, threads))?.map_err(core)?;
        let outputs = outputs.into_iter().zip(layers.iter_mut()).zip(queries.outer_iter());
        let checked = outputs.enumerate().map(|(i, ((output, layer), queries))| {
            output.and_then(|output| layer.checked(output, queries, limits(i))).map_err(core)
        });
        checked.collect::<PyResult<Vec<Answer>>>()
    })?;
    let outputs = answered.into_iter().zip(&all);
    Ok(outputs.map(|(answer, one)| Output::new(py, answer, one.pipeline.promise())).collect())
}

fn check_count(name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name}: expected {expected} sequences, one per Attention, got {got}"
    )))
}

/// How rows are stored, by name.
pub(crate) fn storage_named(name: &str) -> PyResult<Storage> {
    name.parse().map_err(|error| PyValueError::new_err(format!("storage: {error}")))
}

fn fall_back_named(name: &str) -> PyResult<FallBack> {
    name.parse().map_err(|error| PyValueError::new_err(format!("fall_back: {error}")))
}
