//! Selectors that are Python classes: `type = "python"` in a pipeline, with the name under which
//! the class is registered.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::ndarray::Array2;
use numpy::{PyArray1, PyArray2, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use vattention::panic_message;
use vattention::plugin::{
    Error, NewTokens, Picks, Result, Row, Selector, SelectorConfig, Site, register, schemars,
    typetag,
};
use vattention_testkit::laws::LAWS;

use crate::interrupt::run_long;
use crate::pipeline::PyPipeline;

/// Registered classes by name.
static CLASSES: Mutex<BTreeMap<String, Py<PyAny>>> = Mutex::new(BTreeMap::new());

/// A selector that is a Python class.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Python {
    /// Name under which the class is registered.
    name: String,
    /// Keyword arguments of the class.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    settings: Map<String, Value>,
}

register!(Selector, "python", Python, "a Python class, registered under a name; slow");

#[typetag::serde(name = "python")]
impl SelectorConfig for Python {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        pyo3::Python::attach(|py| {
            let class = self.class(py)?;
            let create = || {
                let settings = pythonize::pythonize(py, &self.settings)?.cast_into::<PyDict>()?;
                class.bind(py).call((), Some(&settings))
            };
            let object = create().map_err(|error| self.refuse(error.to_string()))?.unbind();
            Ok(Box::new(Instance { name: self.name.clone(), object }) as Box<dyn Selector>)
        })
    }

    fn check(&self) -> Result<()> {
        pyo3::Python::attach(|py| self.class(py).map(drop))
    }
}

impl Python {
    fn class(&self, py: pyo3::Python<'_>) -> Result<Py<PyAny>> {
        let classes = classes();
        let known = || match classes.len() {
            0 => "none is registered".into(),
            _ => {
                format!("registered are {}", classes.keys().cloned().collect::<Vec<_>>().join(", "))
            }
        };
        let found = classes.get(&self.name).map(|class| class.clone_ref(py));
        found.ok_or_else(|| self.refuse(format!("no class of that name; {}", known())))
    }

    fn refuse(&self, reason: String) -> Error {
        Error::Build { component: format!("python selector `{}`", self.name), reason }
    }
}

fn classes() -> MutexGuard<'static, BTreeMap<String, Py<PyAny>>> {
    CLASSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A Python object that selects for one KV head. Its exceptions end the call of the library.
struct Instance {
    /// Registered name of the class.
    name: String,
    object: Py<PyAny>,
}

impl Instance {
    /// Calls into Python. An exception gets a note that names the selector and the method, and
    /// unwinds to the caller.
    fn call<T>(&self, method: &str, work: impl FnOnce(pyo3::Python<'_>) -> PyResult<T>) -> T {
        let called = pyo3::Python::attach(|py| {
            work(py).inspect_err(|error| {
                let note = format!("raised by `{method}` of the python selector `{}`", self.name);
                // If adding the note fails, the original exception is raised without it.
                let _ = error.value(py).call_method1("add_note", (note,));
            })
        });
        called.unwrap_or_else(|error| resume_unwind(Box::new(error)))
    }
}

impl Clone for Instance {
    fn clone(&self) -> Self {
        let object = self.call("__deepcopy__", |py| {
            let copy = py.import("copy")?.call_method1("deepcopy", (&self.object,))?;
            Ok(copy.unbind())
        });
        Self { name: self.name.clone(), object }
    }
}

impl Selector for Instance {
    fn append(&mut self, new: &NewTokens<'_>) {
        let keys: Array2<f32> = new.keys.to_array(0..new.keys.len());
        self.call("append", |py| {
            let keys = PyArray2::from_owned_array(py, keys);
            self.object.call_method1(py, "append", (keys,)).map(drop)
        });
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let taken: Vec<i64> = picks.iter().map(|token| token as i64).collect();
        let chosen = self.call("select", |py| {
            let query = PyArray1::from_slice(py, row.query());
            let taken = PyArray1::from_vec(py, taken);
            let chosen = self.object.call_method1(py, "select", (query, row.visible(), taken))?;
            indices(&self.name, chosen.bind(py), row.visible())
        });
        picks.take_all(chosen);
    }
}

/// Converts the tokens that a selector returned, and checks that they are visible.
fn indices(name: &str, chosen: &Bound<'_, PyAny>, visible: usize) -> PyResult<Vec<usize>> {
    let numpy = chosen.py().import("numpy")?;
    let array = numpy.call_method1("asarray", (chosen,))?.call_method0("ravel")?;
    let (kind, len): (char, usize) =
        (array.getattr("dtype")?.getattr("kind")?.extract()?, array.len()?);
    if len > 0 && !matches!(kind, 'i' | 'u') {
        let got = array.getattr("dtype")?;
        return Err(PyValueError::new_err(format!(
            "python selector `{name}`: select: expected indices of tokens, got numbers of \
             type {got}"
        )));
    }
    let array: PyReadonlyArray1<'_, i64> = array.call_method1("astype", ("int64",))?.extract()?;
    let valid = |&token: &i64| match usize::try_from(token) {
        Ok(index) if index < visible => Ok(index),
        _ => Err(PyValueError::new_err(format!(
            "python selector `{name}`: select: expected tokens from 0 to {}, got {token}",
            visible - 1
        ))),
    };
    array.as_array().iter().map(valid).collect()
}

/// Registers a class under a name, and replaces an earlier class of that name.
#[pyfunction]
pub(crate) fn register_selector(name: String, class: Py<PyAny>) {
    classes().insert(name, class);
}

/// Returns the name of the first law that a selector of a pipeline breaks, and the message; None if
/// it breaks no law.
#[pyfunction]
#[pyo3(signature = (pipeline, selector, cases))]
pub(crate) fn broken_law(
    py: pyo3::Python<'_>,
    pipeline: &PyPipeline,
    selector: usize,
    cases: u32,
) -> PyResult<Option<(&'static str, String)>> {
    let selectors = &pipeline.config.selectors;
    let config = selectors.get(selector).ok_or_else(|| {
        PyValueError::new_err(format!(
            "selector: expected less than {}, got {selector}",
            selectors.len()
        ))
    })?;
    run_long(py, None, |report| {
        LAWS.iter().enumerate().find_map(|(i, &(name, law))| {
            report(i, LAWS.len());
            let run =
                catch_unwind(AssertUnwindSafe(|| vattention_testkit::run(law, &**config, cases)));
            run.err().map(|panic| (name, violation_message(panic)))
        })
    })
}

/// Message of a violated law, or of an exception in a test of a law.
fn violation_message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<PyErr>() {
        Ok(error) => pyo3::Python::attach(|py| with_notes(py, &error)),
        Err(panic) => panic_message(&*panic).into(),
    }
}

/// Formats an exception in one line, with its notes.
fn with_notes(py: pyo3::Python<'_>, error: &PyErr) -> String {
    let notes = error.value(py).getattr("__notes__").and_then(|notes| notes.extract());
    let notes: Vec<String> = notes.unwrap_or_default();
    notes.iter().fold(error.to_string(), |text, note| format!("{text} ({note})"))
}
