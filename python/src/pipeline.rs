//! Pipelines: read from TOML, checked, changed.

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
#[pyclass(frozen, module = "vattention", skip_from_py_object)]
#[derive(Clone)]
pub(crate) struct Pipeline {
    pub(crate) config: Arc<PipelineConfig>,
    source: Source,
    set: Vec<String>,
}

/// Where a pipeline was read.
#[derive(Clone)]
enum Source {
    File(PathBuf),
    Text { name: String, text: String },
}

impl Pipeline {
    fn read(py: Python<'_>, source: Source, set: Vec<String>) -> PyResult<Self> {
        let loader = Loader { set };
        let read = py.detach(|| match &source {
            Source::File(path) => loader.load(path),
            Source::Text { name, text } => loader.parse(name, text),
        });
        let config = read.map_err(|error| config(py, &error))?;
        Ok(Self { config, source, set: loader.set })
    }

    /// As the tools take it.
    pub(crate) fn entry(&self) -> Entry {
        let file = match &self.source {
            Source::File(path) => path.display().to_string(),
            Source::Text { name, .. } => name.clone(),
        };
        Entry { pipeline: self.config.clone(), file, set: None }
    }
}

#[pymethods]
impl Pipeline {
    /// Loads a pipeline file, the files that it extends, and changes such as `"estimator.epsilon=0.1"`, in order.
    /// A path that is no file, and has neither a folder nor an extension, names a built-in
    /// pipeline: `Pipeline.load("priority")`.
    ///
    /// Raises PipelineError with every problem in them.
    #[staticmethod]
    #[pyo3(signature = (path, *set))]
    fn load(py: Python<'_>, path: PathBuf, set: Vec<String>) -> PyResult<Self> {
        Self::read(py, Source::File(path), set)
    }

    /// Names of the built-in pipelines, which `load` takes.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        pipeline_names()
    }

    /// Reads a pipeline from TOML text, which goes by `name` in messages; `extends` is relative to it.
    ///
    /// Raises PipelineError with every problem in it.
    #[staticmethod]
    #[pyo3(signature = (text, *set, name = "pipeline"))]
    fn parse(py: Python<'_>, text: String, set: Vec<String>, name: &str) -> PyResult<Self> {
        Self::read(py, Source::Text { name: name.into(), text }, set)
    }

    /// The same pipeline with more changes, such as `"selectors.0.size=64"`. Its file is read again.
    ///
    /// Raises PipelineError with every problem in them.
    #[pyo3(signature = (*changes))]
    fn set(&self, py: Python<'_>, changes: Vec<String>) -> PyResult<Self> {
        Self::read(py, self.source.clone(), [self.set.clone(), changes].concat())
    }

    /// Raises ValueError if the pipeline cannot run in layers of this shape; `value_dim` is `head_dim` if it is not given.
    #[allow(clippy::too_many_arguments)] // Keywords in Python.
    #[pyo3(signature = (query_heads, kv_heads, head_dim, value_dim = None, *, layer = 0, backend = "cpu"))]
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

    /// Its name: what the file says, or the file's own name.
    #[getter]
    fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it reads everything.
    #[getter]
    fn is_dense(&self) -> bool {
        self.config.is_dense()
    }

    /// What is promised, or None: target, epsilon, delta, scope.
    #[getter]
    fn promise<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let promise = self.config.promise();
        promise.map(|promise| Ok(pythonize::pythonize(py, &promise)?)).transpose()
    }

    /// The pipeline in full, as a file that means the same.
    fn to_toml(&self) -> PyResult<String> {
        toml::to_string(&*self.config).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Returns this pipeline: it is immutable.
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

/// The files that a pipeline or a grid is read from: its own, those that it extends or varies, and those that selectors name. Of
/// a file that is neither there are none.
#[pyfunction]
pub(crate) fn files_of(py: Python<'_>, path: PathBuf) -> Vec<PathBuf> {
    let pipeline = || {
        let (pipeline, files) = Loader::default().load_with_files(&path).ok()?;
        Some((vec![pipeline], files))
    };
    let grid = || {
        let grid = ParameterGrid::load(&path).ok()?;
        let pipelines = grid.combinations.into_iter().map(|one| one.pipeline);
        Some((pipelines.collect(), grid.files))
    };
    py.detach(|| {
        let (pipelines, mut files) = pipeline().or_else(grid).unwrap_or_default();
        files.extend(pipelines.iter().flat_map(|one| named_files(one)));
        files.sort();
        files.dedup();
        files
    })
}
