//! What the command's tools do: pipelines compared, verified and studied on a trace.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use vattention::experiments::study::{
    self as studies, BaseSampleOptions, BiasOptions, CalibrationOptions, CoverageOptions,
    EpsilonOptions, NormalityOptions, PromiseOptions, Study, TightnessOptions,
};
use vattention::experiments::{self, Entry, Results, TraceSettings};
use vattention::{Backend, trace};

use crate::backends::find_backend;
use crate::error::tool;
use crate::interrupt::{ReportProgress, run_long};
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
        experiments::compare(&entries, trace, backend, &settings, &Results::default(), report)
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
        experiments::verify(&pipeline.config, trace, trials, &Results::default(), report)
    })?;
    plain(py, &found.map_err(tool)?)
}

/// A study and its options.
#[derive(Deserialize)]
#[serde(tag = "study", rename_all = "kebab-case", deny_unknown_fields)]
enum StudyRequest {
    Tightness(TightnessOptions),
    Epsilon(EpsilonOptions),
    BaseSample(BaseSampleOptions),
    Normality(NormalityOptions),
    Coverage(CoverageOptions),
    Bias(BiasOptions),
    Calibration(CalibrationOptions),
    Sensitivity {},
    Pareto(PromiseOptions),
    Limit(PromiseOptions),
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
        run: impl FnOnce(&Study<'_>) -> experiments::Result<T> + Send,
    ) -> PyResult<Bound<'_, PyAny>> {
        let Self { trace, settings, progress } = self;
        let found = run_long(py, progress, |report| {
            let results = &Results::default();
            run(&Study { trace, settings: &settings, results, progress: report })
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
            &Results,
            &ReportProgress<'_>,
        ) -> experiments::Result<T>
        + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Self { trace, settings, progress } = self;
        let backend = find_backend(backend)?;
        let found = run_long(py, progress, |report| {
            run(trace, backend, &settings, &Results::default(), report)
        })?;
        plain(py, &found.map_err(tool)?)
    }
}

#[allow(clippy::too_many_arguments)] // Keywords in Python.
#[pyfunction]
#[pyo3(signature = (request, pipelines, trace, *, layers = None, queries = None, backend = "cpu", progress = None))]
pub(crate) fn study<'py>(
    py: Python<'py>,
    request: &Bound<'py, PyAny>,
    pipelines: Vec<PyRef<'py, Pipeline>>,
    trace: &Trace,
    layers: Option<Vec<usize>>,
    queries: Option<usize>,
    backend: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let request: StudyRequest = pythonize::depythonize(request)
        .map_err(|error| PyValueError::new_err(format!("study: {error}")))?;
    let entries = &entries(&pipelines)[..];
    let settings = TraceSettings { layers, queries, dump: false };
    let on = On { trace: &trace.trace, settings, progress };
    match request {
        StudyRequest::Tightness(options) => {
            on.sampled(py, |study| studies::tightness(study, &options))
        }
        StudyRequest::Epsilon(options) => on.sampled(py, |study| studies::epsilon(study, &options)),
        StudyRequest::BaseSample(options) => {
            on.sampled(py, |study| studies::base_sample(study, &options))
        }
        StudyRequest::Normality(options) => {
            on.sampled(py, |study| studies::normality(study, &options))
        }
        StudyRequest::Coverage(options) => {
            on.sampled(py, |study| studies::coverage(study, &options))
        }
        StudyRequest::Bias(options) => on.sampled(py, |study| studies::bias(study, &options)),
        StudyRequest::Calibration(options) => {
            on.sampled(py, |study| studies::calibration(study, entries, &options))
        }
        StudyRequest::Sensitivity {} => {
            on.answered(py, backend, |trace, backend, settings, results, report| {
                studies::sensitivity(trace, backend, settings, results, report)
            })
        }
        StudyRequest::Pareto(options) => {
            on.answered(py, backend, |trace, backend, settings, results, report| {
                studies::pareto(entries, &options, trace, backend, settings, results, report)
            })
        }
        StudyRequest::Limit(options) => {
            on.answered(py, backend, |trace, backend, settings, results, report| {
                studies::limit(entries, &options, trace, backend, settings, results, report)
            })
        }
    }
}
