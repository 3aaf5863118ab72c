//! What the command's tools do: pipelines compared, verified and studied on a trace.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use vattention::experiments::study::{self as studies, Study};
use vattention::experiments::{self, Entry, TraceSettings};
use vattention::{Backend, Fraction, trace};

use crate::attention::find_backend;
use crate::error::tool;
use crate::interrupt::{Report, run_long};
use crate::pipeline::Pipeline;
use crate::trace::Trace;

/// The results as dicts and lists.
fn plain<'py>(py: Python<'py>, found: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    Ok(pythonize::pythonize(py, found)?)
}

fn entries(pipelines: &[PyRef<'_, Pipeline>]) -> Vec<Entry> {
    pipelines.iter().map(|pipeline| pipeline.entry()).collect()
}

#[pyfunction]
#[pyo3(signature = (pipelines, trace, *, layers = None, queries = None, backend = "cpu", progress = None))]
pub(crate) fn compare<'py>(
    py: Python<'py>,
    pipelines: Vec<PyRef<'py, Pipeline>>,
    trace: &Trace,
    layers: Option<Vec<usize>>,
    queries: Option<usize>,
    backend: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (entries, backend) = (entries(&pipelines), find_backend(backend)?);
    let settings = TraceSettings { layers, queries, dump: false };
    let trace = &trace.trace;
    let found = run_long(py, progress, |report| {
        experiments::compare(&entries, trace, backend, &settings, report)
    })?;
    plain(py, &found.map_err(tool)?.0)
}

#[pyfunction]
#[pyo3(signature = (pipeline, trace, *, trials = 2000, progress = None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    pipeline: &Pipeline,
    trace: &Trace,
    trials: u32,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let trace = &trace.trace;
    let found = run_long(py, progress, |report| {
        experiments::verify(&pipeline.config, trace, trials, report)
    })?;
    plain(py, &found.map_err(tool)?)
}

/// A study and its parameters.
#[derive(Deserialize)]
#[serde(tag = "study", rename_all = "kebab-case", deny_unknown_fields)]
enum StudyRequest {
    Tightness { trials: u32, epsilon: Fraction, delta: Fraction },
    Epsilon { trials: u32, epsilons: Vec<Fraction>, delta: Fraction },
    BaseSample { trials: u32, sizes: Vec<usize> },
    Normality { trials: u32, sizes: Vec<usize> },
    Coverage { trials: u32, share: Fraction, mass: Fraction },
    Bias { trials: u32, shares: Vec<Fraction> },
    Calibration { trials: u32, deltas: Vec<Fraction> },
    Sensitivity { backend: String },
    Pareto { backend: String, epsilon: Fraction, delta: Fraction },
    Limit { backend: String, epsilon: Fraction, delta: Fraction },
}

/// What a study is made on.
struct On<'a> {
    trace: &'a trace::Trace,
    settings: TraceSettings,
    progress: Option<Py<PyAny>>,
}

impl On<'_> {
    /// Runs a study that samples rows.
    fn sampled<T: Serialize + Send>(
        self,
        py: Python<'_>,
        trials: u32,
        run: impl FnOnce(&Study<'_>) -> experiments::Result<T> + Send,
    ) -> PyResult<Bound<'_, PyAny>> {
        let Self { trace, settings, progress } = self;
        let found = run_long(py, progress, |report| {
            run(&Study { trace, settings: &settings, trials, progress: report })
        })?;
        plain(py, &found.map_err(tool)?)
    }

    /// Runs a study that answers queries.
    fn answered<'py, T: Serialize + Send>(
        self,
        py: Python<'py>,
        backend: &str,
        run: impl FnOnce(
            &trace::Trace,
            &dyn Backend,
            &TraceSettings,
            &Report<'_>,
        ) -> experiments::Result<T>
        + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Self { trace, settings, progress } = self;
        let backend = find_backend(backend)?;
        let found = run_long(py, progress, |report| run(trace, backend, &settings, report))?;
        plain(py, &found.map_err(tool)?)
    }
}

#[pyfunction]
#[pyo3(signature = (request, pipelines, trace, *, layers = None, queries = None, progress = None))]
pub(crate) fn study<'py>(
    py: Python<'py>,
    request: &Bound<'py, PyAny>,
    pipelines: Vec<PyRef<'py, Pipeline>>,
    trace: &Trace,
    layers: Option<Vec<usize>>,
    queries: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let request: StudyRequest = pythonize::depythonize(request)
        .map_err(|error| PyValueError::new_err(format!("study: {error}")))?;
    let entries = &entries(&pipelines)[..];
    let settings = TraceSettings { layers, queries, dump: false };
    let on = On { trace: &trace.trace, settings, progress };
    match request {
        StudyRequest::Tightness { trials, epsilon, delta } => {
            on.sampled(py, trials, |study| studies::tightness(study, epsilon, delta))
        }
        StudyRequest::Epsilon { trials, epsilons, delta } => {
            on.sampled(py, trials, |study| studies::epsilon(study, &epsilons, delta))
        }
        StudyRequest::BaseSample { trials, sizes } => {
            on.sampled(py, trials, |study| studies::base_sample(study, &sizes))
        }
        StudyRequest::Normality { trials, sizes } => {
            on.sampled(py, trials, |study| studies::normality(study, &sizes))
        }
        StudyRequest::Coverage { trials, share, mass } => {
            on.sampled(py, trials, |study| studies::coverage(study, share, mass))
        }
        StudyRequest::Bias { trials, shares } => {
            on.sampled(py, trials, |study| studies::bias(study, &shares))
        }
        StudyRequest::Calibration { trials, deltas } => {
            on.sampled(py, trials, |study| studies::calibration(study, entries, &deltas))
        }
        StudyRequest::Sensitivity { backend } => {
            on.answered(py, &backend, |trace, backend, settings, report| {
                studies::sensitivity(trace, backend, settings, report)
            })
        }
        StudyRequest::Pareto { backend, epsilon, delta } => {
            on.answered(py, &backend, |trace, backend, settings, report| {
                studies::pareto(entries, (epsilon, delta), trace, backend, settings, report)
            })
        }
        StudyRequest::Limit { backend, epsilon, delta } => {
            on.answered(py, &backend, |trace, backend, settings, report| {
                studies::limit(entries, (epsilon, delta), trace, backend, settings, report)
            })
        }
    }
}
