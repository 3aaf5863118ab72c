//! Traces: captured queries, keys and values in safetensors files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use numpy::ndarray::{Array3, Ix3};
use numpy::{PyArray1, PyArray3};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use vattention::TokenClass;
use vattention::trace::{Layout, TraceInfo, TraceLayer};

use crate::array::InputArray;
use crate::attention::{parse_classes, parse_storage};
use crate::error::tool;

/// A trace file, whose layers are read on demand. The file must not change while it is open.
///
/// Raises OSError if the file cannot be read, and ValueError if it is damaged.
#[pyclass(frozen, name = "Trace", module = "vattention")]
pub(crate) struct PyTrace {
    pub(crate) trace: vattention::trace::Trace,
}

/// Dimensions and parts of a layer, known without reading its numbers.
#[derive(Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "parts that a trace has or lacks")]
struct LayerLayout {
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    tokens: usize,
    queries: usize,
    prompt: usize,
    causal: bool,
    classes: bool,
    soft_cap: bool,
    sinks: bool,
    storage: &'static str,
}

impl From<Layout> for LayerLayout {
    fn from(layout: Layout) -> Self {
        let Layout { shape, tokens, queries, prompt, causal, classes, soft_cap, sinks, storage } =
            layout;
        Self {
            query_heads: shape.query_heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            value_dim: shape.value_dim,
            tokens,
            queries,
            prompt,
            causal,
            classes,
            soft_cap,
            sinks,
            storage: storage.name(),
        }
    }
}

#[pymethods]
impl PyTrace {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let trace = py.detach(|| vattention::trace::Trace::open(&path)).map_err(tool)?;
        Ok(Self { trace })
    }

    /// Path that was passed to the constructor.
    #[getter]
    fn path(&self) -> String {
        self.trace.path().display().to_string()
    }

    /// Factor by which queries are multiplied; None means 1 / sqrt(head_dim).
    #[getter]
    fn scale(&self) -> Option<f32> {
        self.trace.info().scale
    }

    /// Model from which the trace was captured, if the file names it.
    #[getter]
    fn model(&self) -> Option<&str> {
        self.trace.info().model.as_deref()
    }

    /// Text on which the trace was captured, if the file names it.
    #[getter]
    fn source(&self) -> Option<&str> {
        self.trace.info().source.as_deref()
    }

    /// Dimensions of each layer, by number.
    #[getter]
    fn layers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let layers = PyDict::new(py);
        for (number, layout) in self.trace.layers() {
            let layout = pythonize::pythonize(py, &LayerLayout::from(layout))?;
            layers.set_item(number, layout)?;
        }
        Ok(layers)
    }

    /// Reads one layer: queries, keys and values, and, if the layer has them, prompt, visible,
    /// prompt_tokens, classes, soft_cap and sink_logits.
    ///
    /// Raises KeyError if there is no such layer, and ValueError if its numbers are damaged.
    fn layer<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyDict>> {
        let read = py.detach(|| self.trace.layer(number));
        let layer = read.ok_or_else(|| {
            let known: Vec<usize> = self.trace.layers().map(|(number, _)| number).collect();
            PyKeyError::new_err(format!("layer {number}: expected one of {known:?}"))
        })?;
        let layer = layer.map_err(tool)?;
        let parts = PyDict::new(py);
        let put = |name: &str, array: Array3<f32>| {
            parts.set_item(name, PyArray3::from_owned_array(py, array))
        };
        put("queries", layer.queries)?;
        put("keys", layer.keys)?;
        put("values", layer.values)?;
        if let Some(prompt) = layer.prompt {
            put("prompt", prompt)?;
        }
        if let Some(visible) = layer.visible {
            let visible: Vec<i64> = visible.into_iter().map(|limit| limit as i64).collect();
            parts.set_item("visible", PyArray1::from_vec(py, visible))?;
        }
        if let Some(prompt_tokens) = layer.prompt_tokens {
            parts.set_item("prompt_tokens", prompt_tokens)?;
        }
        if let Some(classes) = layer.classes {
            let classes: Vec<u8> = classes.into_iter().map(TokenClass::number).collect();
            parts.set_item("classes", PyArray1::from_vec(py, classes))?;
        }
        if let Some(soft_cap) = layer.soft_cap {
            parts.set_item("soft_cap", soft_cap)?;
        }
        if let Some(sink_logits) = layer.sink_logits {
            parts.set_item("sink_logits", PyArray1::from_vec(py, sink_logits))?;
        }
        Ok(parts)
    }

    fn __repr__(&self) -> String {
        format!("<Trace {:?}: {} layers>", self.path(), self.trace.layers().count())
    }
}

/// Writes a trace from layers by number, in the format of `Trace.layer`, rounded to `storage` (f32,
/// f16 or bf16).
///
/// Raises ValueError for layers that form no valid trace, and names the tensor; OSError if the file
/// cannot be written. An error leaves no file.
#[pyfunction]
#[pyo3(signature = (
    path, layers, *, storage = "f16", scale = None, model = None, source = None
))]
pub(crate) fn write_trace(
    py: Python<'_>,
    path: PathBuf,
    layers: BTreeMap<usize, Bound<'_, PyDict>>,
    storage: &str,
    scale: Option<f32>,
    model: Option<String>,
    source: Option<String>,
) -> PyResult<()> {
    let storage = parse_storage(storage)?;
    let layers = layers.iter().map(|(&number, parts)| Ok((number, parse_layer(number, parts)?)));
    let layers = layers.collect::<PyResult<BTreeMap<_, _>>>()?;
    let info = TraceInfo { scale, model, source, share: None };
    let write = || {
        vattention::trace::write_trace(&path, &info, &layers, storage)?;
        // An invalid trace is reported to its writer rather than to a reader, and removed.
        check_readable(&path).inspect_err(|_| drop(std::fs::remove_file(&path)))
    };
    py.detach(write).map_err(tool)
}

/// Fails if a file is no valid trace.
fn check_readable(path: &Path) -> vattention::trace::Result<()> {
    let trace = vattention::trace::Trace::open(path)?;
    let mut layers = trace.layers().filter_map(|(number, _)| trace.layer(number));
    layers.try_for_each(|layer| layer.map(drop))
}

/// Converts a dict in the format of `Trace.layer` to a layer.
fn parse_layer(number: usize, parts: &Bound<'_, PyDict>) -> PyResult<TraceLayer> {
    const PARTS: [&str; 9] = [
        "queries",
        "keys",
        "values",
        "visible",
        "prompt",
        "prompt_tokens",
        "classes",
        "soft_cap",
        "sink_logits",
    ];
    for name in parts.keys() {
        let name: String = name.extract()?;
        if !PARTS.contains(&name.as_str()) {
            let known = PARTS.join(", ");
            return Err(PyValueError::new_err(format!(
                "layers[{number}]: no part `{name}`; expected {known}"
            )));
        }
    }
    let optional = |name: &'static str| -> PyResult<Option<Array3<f32>>> {
        let Some(array) = parts.get_item(name)?.filter(|array| !array.is_none()) else {
            return Ok(None);
        };
        let input = InputArray::new(name, &array)?;
        Ok(Some(input.array::<Ix3>("[heads, rows, dim]")?.into_owned()))
    };
    let required = |name: &'static str| {
        let missing = || PyValueError::new_err(format!("layers[{number}]: expected `{name}`"));
        optional(name)?.ok_or_else(missing)
    };
    let visible: Option<Vec<usize>> = match parts.get_item("visible")? {
        Some(limits) if !limits.is_none() => Some(limits.extract()?),
        _ => None,
    };
    let prompt_tokens = parts.get_item("prompt_tokens")?;
    let soft_cap = parts.get_item("soft_cap")?;
    let sink_logits: Option<Vec<f32>> = match parts.get_item("sink_logits")? {
        Some(sinks) if !sinks.is_none() => Some(sinks.extract()?),
        _ => None,
    };
    let classes: Option<Vec<i64>> = match parts.get_item("classes")? {
        Some(classes) if !classes.is_none() => Some(classes.extract()?),
        _ => None,
    };
    Ok(TraceLayer {
        queries: required("queries")?,
        keys: required("keys")?,
        values: required("values")?,
        visible,
        prompt: optional("prompt")?,
        prompt_tokens: prompt_tokens.map(|tokens| tokens.extract()).transpose()?.flatten(),
        classes: classes.map(|classes| parse_classes(&classes)).transpose()?,
        soft_cap: soft_cap.map(|cap| cap.extract()).transpose()?.flatten(),
        sink_logits,
    })
}
