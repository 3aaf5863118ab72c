//! Pipelines: reading, checking and changing them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::config::{Loader, ParameterGrid, pipeline_names};
use vattention::experiments::{Entry, named_files};
use vattention::{Options, PipelineConfig, Shape};

use crate::backends::find_backend;
use crate::error::{config, core};

/// A pipeline: selectors, a sampler and an estimator, as a TOML file composes them.
#[pyclass(frozen, name = "Pipeline", module = "vattention", skip_from_py_object)]
#[derive(Clone)]
pub(crate) struct PyPipeline {
    pub(crate) config: Arc<PipelineConfig>,
    source: PipelineSource,
    set: Vec<String>,
}

/// Source of a pipeline.
#[derive(Clone)]
enum PipelineSource {
    File(PathBuf),
    Text { name: String, text: String },
}

impl PyPipeline {
    fn read(py: Python<'_>, source: PipelineSource, set: Vec<String>) -> PyResult<Self> {
        let loader = Loader { set };
        let read = py.detach(|| match &source {
            PipelineSource::File(path) => loader.load(path),
            PipelineSource::Text { name, text } => loader.parse(name, text),
        });
        let config = read.map_err(|error| config(py, &error))?;
        Ok(Self { config, source, set: loader.set })
    }

    /// The pipeline as an argument of the tools.
    pub(crate) fn entry(&self) -> Entry {
        let file = match &self.source {
            PipelineSource::File(path) => path.display().to_string(),
            PipelineSource::Text { name, .. } => name.clone(),
        };
        Entry { pipeline: self.config.clone(), file, set: None }
    }
}

#[pymethods]
impl PyPipeline {
    /// Loads a pipeline file and the files that it extends, and applies changes such as
    /// `"estimator.epsilon=0.1"`, in order. A path that is no file, and has neither a folder nor an
    /// extension, names a built-in pipeline: `Pipeline.load("priority")`.
    ///
    /// Raises PipelineError with every problem in the files and the changes.
    #[staticmethod]
    #[pyo3(signature = (path, *set))]
    fn load(py: Python<'_>, path: PathBuf, set: Vec<String>) -> PyResult<Self> {
        Self::read(py, PipelineSource::File(path), set)
    }

    /// Names of the built-in pipelines, which `load` takes.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        pipeline_names()
    }

    /// Reads a pipeline from TOML text. Messages call it `name`, and `extends` is relative to
    /// `name`.
    ///
    /// Raises PipelineError with every problem in the text and the changes.
    #[staticmethod]
    #[pyo3(signature = (text, *set, name = "pipeline"))]
    fn parse(py: Python<'_>, text: String, set: Vec<String>, name: &str) -> PyResult<Self> {
        Self::read(py, PipelineSource::Text { name: name.into(), text }, set)
    }

    /// Returns the same pipeline with more changes, such as `"selectors.0.size=64"`. A pipeline
    /// from a file is read again.
    ///
    /// Raises PipelineError with every problem in the pipeline and the changes.
    #[pyo3(signature = (*changes))]
    fn set(&self, py: Python<'_>, changes: Vec<String>) -> PyResult<Self> {
        Self::read(py, self.source.clone(), [self.set.clone(), changes].concat())
    }

    /// Raises ValueError if the pipeline cannot run in layers of this shape. `value_dim` defaults
    /// to `head_dim`.
    #[allow(clippy::too_many_arguments)] // Keywords in Python.
    #[pyo3(signature = (
        query_heads, kv_heads, head_dim, value_dim = None, *, layer = 0, backend = "cpu"
    ))]
    fn check(
        &self,
        py: Python<'_>,
        query_heads: usize,
        kv_heads: usize,
        head_dim: usize,
        value_dim: Option<usize>,
        layer: usize,
        backend: &str,
    ) -> PyResult<()> {
        let value_dim = value_dim.unwrap_or(head_dim);
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        let backend = find_backend(backend)?;
        let started =
            py.detach(|| backend.start(&self.config, layer, shape, &Options::default()).map(drop));
        started.map_err(core)
    }

    /// Name of the pipeline: the file's `name`, or else the file's own name.
    #[getter]
    fn name(&self) -> &str {
        &self.config.name
    }

    /// True if the pipeline reads all tokens.
    #[getter]
    fn is_dense(&self) -> bool {
        self.config.is_dense()
    }

    /// The promise of the pipeline, with target, epsilon, delta, scope and reference, or None.
    #[getter]
    fn promise<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let promise = self.config.promise();
        promise.map(|promise| Ok(pythonize::pythonize(py, &promise)?)).transpose()
    }

    /// The pipeline as TOML text with all settings.
    fn to_toml(&self) -> PyResult<String> {
        toml::to_string(&*self.config).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Returns this pipeline, because it is immutable.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __repr__(&self) -> String {
        format!("<Pipeline {:?}>", self.config.name)
    }
}

/// Files from which a pipeline or a grid is read: the file itself, those that it extends or varies,
/// and those that selectors name. The list is empty if the file is neither.
#[pyfunction]
pub(crate) fn files_of(py: Python<'_>, path: PathBuf) -> Vec<PathBuf> {
    let pipeline = || {
        let (pipeline, files) = Loader::default().load_with_files(&path).ok()?;
        Some((vec![pipeline], files))
    };
    let grid = || {
        let grid = ParameterGrid::load(&path).ok()?;
        let pipelines = grid.combinations.into_iter().map(|combination| combination.pipeline);
        Some((pipelines.collect(), grid.files))
    };
    py.detach(|| {
        let (pipelines, mut files) = pipeline().or_else(grid).unwrap_or_default();
        files.extend(pipelines.iter().flat_map(|pipeline| named_files(pipeline)));
        files.sort();
        files.dedup();
        files
    })
}
