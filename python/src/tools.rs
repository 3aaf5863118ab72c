//! The command's tools: comparisons, verifications and studies of pipelines on a trace.

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
use crate::pipeline::PyPipeline;
use crate::trace::PyTrace;

/// Converts results to dicts and lists.
fn to_python<'py>(py: Python<'py>, results: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    Ok(pythonize::pythonize(py, results)?)
}

fn entries(pipelines: &[PyRef<'_, PyPipeline>]) -> Vec<Entry> {
    pipelines.iter().map(|pipeline| pipeline.entry()).collect()
}

#[pyfunction]
#[pyo3(signature = (
    pipelines, trace, *, layers = None, queries = None, backend = "cpu", progress = None
))]
pub(crate) fn compare<'py>(
    py: Python<'py>,
    pipelines: Vec<PyRef<'py, PyPipeline>>,
    trace: &PyTrace,
    layers: Option<Vec<usize>>,
    queries: Option<usize>,
    backend: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (entries, backend) = (entries(&pipelines), find_backend(backend)?);
    let settings = TraceSettings { layers, queries, ..TraceSettings::default() };
    let trace = &trace.trace;
    let results = run_long(py, progress, |report| {
        experiments::compare(&entries, trace, backend, &settings, &Results::default(), report)
    })?;
    to_python(py, &results.map_err(tool)?.0)
}

#[pyfunction]
#[pyo3(signature = (pipeline, trace, *, trials = 2000, progress = None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    pipeline: &PyPipeline,
    trace: &PyTrace,
    trials: u32,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let trace = &trace.trace;
    let results = run_long(py, progress, |report| {
        experiments::verify(&pipeline.config, trace, trials, &Results::default(), report)
    })?;
    to_python(py, &results.map_err(tool)?)
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

/// Trace, settings and progress callback of a study.
struct StudyContext<'a> {
    trace: &'a trace::Trace,
    settings: TraceSettings,
    progress: Option<Py<PyAny>>,
}

impl StudyContext<'_> {
    /// Runs a study that samples rows.
    fn run_sampled<T: Serialize + Send>(
        self,
        py: Python<'_>,
        run: impl FnOnce(&Study<'_>) -> experiments::Result<T> + Send,
    ) -> PyResult<Bound<'_, PyAny>> {
        let Self { trace, settings, progress } = self;
        let results = run_long(py, progress, |report| {
            let results = &Results::default();
            run(&Study { trace, settings: &settings, results, progress: report })
        })?;
        to_python(py, &results.map_err(tool)?)
    }

    /// Runs a study that executes attention steps.
    fn run_steps<'py, T: Serialize + Send>(
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
        let results = run_long(py, progress, |report| {
            run(trace, backend, &settings, &Results::default(), report)
        })?;
        to_python(py, &results.map_err(tool)?)
    }
}

#[allow(clippy::too_many_arguments)] // Keywords in Python.
#[pyfunction]
#[pyo3(signature = (
    request, pipelines, trace, *, layers = None, queries = None, backend = "cpu", progress = None
))]
pub(crate) fn study<'py>(
    py: Python<'py>,
    request: &Bound<'py, PyAny>,
    pipelines: Vec<PyRef<'py, PyPipeline>>,
    trace: &PyTrace,
    layers: Option<Vec<usize>>,
    queries: Option<usize>,
    backend: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let request: StudyRequest = pythonize::depythonize(request)
        .map_err(|error| PyValueError::new_err(format!("study: {error}")))?;
    let entries = &entries(&pipelines)[..];
    let settings = TraceSettings { layers, queries, ..TraceSettings::default() };
    let context = StudyContext { trace: &trace.trace, settings, progress };
    match request {
        StudyRequest::Tightness(options) => {
            context.run_sampled(py, |study| studies::tightness(study, &options))
        }
        StudyRequest::Epsilon(options) => {
            context.run_sampled(py, |study| studies::epsilon(study, &options))
        }
        StudyRequest::BaseSample(options) => {
            context.run_sampled(py, |study| studies::base_sample(study, &options))
        }
        StudyRequest::Normality(options) => {
            context.run_sampled(py, |study| studies::normality(study, &options))
        }
        StudyRequest::Coverage(options) => {
            context.run_sampled(py, |study| studies::coverage(study, &options))
        }
        StudyRequest::Bias(options) => {
            context.run_sampled(py, |study| studies::bias(study, &options))
        }
        StudyRequest::Calibration(options) => {
            context.run_sampled(py, |study| studies::calibration(study, entries, &options))
        }
        StudyRequest::Sensitivity {} => {
            context.run_steps(py, backend, |trace, backend, settings, results, report| {
                studies::sensitivity(trace, backend, settings, results, report)
            })
        }
        StudyRequest::Pareto(options) => {
            context.run_steps(py, backend, |trace, backend, settings, results, report| {
                studies::pareto(entries, &options, trace, backend, settings, results, report)
            })
        }
        StudyRequest::Limit(options) => {
            context.run_steps(py, backend, |trace, backend, settings, results, report| {
                studies::limit(entries, &options, trace, backend, settings, results, report)
            })
        }
    }
}
