//! Outputs of attention, and reports on their rows.

use numpy::ndarray::{Axis, concatenate};
use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use vattention::engine::Selection;
use vattention::experiments::{Bars, RowError, Violations};
use vattention::{Kind, Promise, RowReport, Target};

/// An output, and the errors of its rows relative to dense attention, if they were requested.
pub(crate) struct CheckedOutput {
    pub(crate) output: vattention::Output,
    /// One error per row, in the order of (query, query head).
    pub(crate) errors: Option<Vec<RowError>>,
}

impl CheckedOutput {
    /// Joins the outputs of consecutive queries.
    pub(crate) fn append(self, more: Self) -> Self {
        let (mut output, other) = (self.output, more.output);
        let joined = "outputs of one sequence have one shape";
        output.out = concatenate(Axis(1), &[output.out.view(), other.out.view()]).expect(joined);
        let logs = [output.log_denominator.view(), other.log_denominator.view()];
        output.log_denominator = concatenate(Axis(1), &logs).expect(joined);
        output.rows.extend(other.rows);
        if let (Some(selection), Some(other)) = (&mut output.selection, &other.selection) {
            (0..other.rows()).for_each(|row| {
                let (indices, probabilities) = other.row(row);
                selection.push(indices, probabilities, other.live[row].clone());
            });
        }
        let errors = self.errors.zip(more.errors);
        Self { output, errors: errors.map(|(first, second)| [first, second].concat()) }
    }
}

/// The outputs of some queries of one layer, and a report for each row. Queries are those of one
/// sequence, or one of each sequence of `PagedAttention.attend`.
#[pyclass(frozen, name = "Output", module = "vattention")]
pub(crate) struct PyOutput {
    /// Attention outputs, `[query_heads, queries, value_dim]`.
    #[pyo3(get)]
    out: Py<PyArray3<f32>>,
    /// Estimated log-sum-exp of the visible logits, and of the attention sink if there is one,
    /// `[query_heads, queries]`.
    #[pyo3(get)]
    log_denominator: Py<PyArray2<f32>>,
    rows: Vec<RowReport>,
    errors: Option<Vec<RowError>>,
    selection: Option<Selection>,
    promise: Option<Promise>,
    heads: usize,
}

/// The report of one row for Python.
#[derive(Serialize)]
#[allow(clippy::struct_excessive_bools)] // Each is a separate key in Python.
struct RowRecord {
    query: usize,
    query_head: usize,
    visible: usize,
    read: usize,
    certain: usize,
    sampled: usize,
    read_by_group: usize,
    budget: Option<usize>,
    fell_back: bool,
    unobserved: bool,
    kind: Kind,
    assumes: vattention::plugin::Assumptions,
    promised: bool,
    held: bool,
    bar: Option<f64>,
    error: Option<f64>,
    violated: Option<bool>,
}

/// Totals and means over all rows.
#[derive(Serialize)]
struct Summary {
    rows: usize,
    visible: usize,
    density: f64,
    density_per_head: f64,
    sampled: f64,
    fell_back: usize,
    unobserved: usize,
    exact: usize,
    promised: usize,
    held: usize,
    kind: Option<Kind>,
    bar: Option<f64>,
    widest_bar: Option<f64>,
    bounded: usize,
    unbounded: usize,
    error: Option<f64>,
    largest_error: Option<f64>,
    violations: Option<usize>,
    violated_steps: Option<usize>,
}

impl PyOutput {
    pub(crate) fn new(py: Python<'_>, checked: CheckedOutput, promise: Option<Promise>) -> Self {
        let vattention::Output { out, log_denominator, rows, selection, .. } = checked.output;
        let heads = out.dim().0;
        Self {
            out: PyArray3::from_owned_array(py, out).unbind(),
            log_denominator: PyArray2::from_owned_array(py, log_denominator).unbind(),
            rows,
            errors: checked.errors,
            selection,
            promise,
            heads,
        }
    }

    fn error(&self, row: usize) -> Option<&RowError> {
        self.errors.as_ref().map(|errors| &errors[row])
    }

    /// Returns true if a row's error exceeds epsilon; rows that have only an error bar violate no
    /// promise. Returns `None` without a promise of the pipeline or without errors.
    fn violated(&self, row: usize) -> Option<bool> {
        let (promise, error) = (self.promise.as_ref()?, self.error(row)?);
        Some(error.violates(promise, &self.rows[row].certificate))
    }

    fn row(&self, row: usize) -> RowRecord {
        let report = &self.rows[row];
        let certificate = &report.certificate;
        RowRecord {
            query: row / self.heads,
            query_head: row % self.heads,
            visible: report.visible,
            read: report.certain + report.sampled,
            certain: report.certain,
            sampled: report.sampled,
            read_by_group: report.read_by_group,
            budget: report.budget,
            fell_back: report.fell_back,
            unobserved: report.unobserved,
            kind: certificate.kind,
            assumes: certificate.assumes,
            promised: certificate.promise.is_some(),
            held: certificate.held,
            bar: certificate.bar.map(|bar| bar.radius),
            error: self.error(row).map(|error| error.relative(Target::Sdpa)),
            violated: self.violated(row),
        }
    }

    fn violations(&self) -> Option<Violations> {
        self.promise.as_ref().and(self.errors.as_ref())?;
        let mut violations = Violations::default();
        for step in 0..self.rows.len() / self.heads {
            let rows = step * self.heads..(step + 1) * self.heads;
            violations.add_step(rows.map(|row| self.violated(row) == Some(true)));
        }
        Some(violations)
    }

    fn bars(&self) -> Bars {
        let mut bars = Bars::default();
        for (i, row) in self.rows.iter().enumerate() {
            match self.error(i) {
                Some(error) => bars.add_row(&row.certificate, error),
                None => bars.add(&row.certificate, 0.0),
            }
        }
        bars
    }

    fn summarize(&self) -> Summary {
        let count = |test: fn(&RowReport) -> bool| self.rows.iter().filter(|row| test(row)).count();
        let mean = |number: fn(&RowReport) -> f64| {
            self.rows.iter().map(number).sum::<f64>() / self.rows.len().max(1) as f64
        };
        let errors = self.errors.as_ref().map(|errors| {
            errors.iter().map(|error| error.relative(Target::Sdpa)).collect::<Vec<f64>>()
        });
        let (bars, violations) = (self.bars(), self.violations());
        let bounded = bars.rows - bars.unbounded;
        Summary {
            rows: self.rows.len(),
            visible: self.rows.iter().map(|row| row.visible).max().unwrap_or(0),
            density: mean(RowReport::density_of_group),
            density_per_head: mean(RowReport::density),
            sampled: mean(|row| row.sampled as f64),
            fell_back: count(|row| row.fell_back),
            unobserved: count(|row| row.unobserved),
            exact: count(|row| row.certificate.kind == Kind::Exact),
            promised: count(|row| row.certificate.promise.is_some()),
            held: count(|row| row.certificate.held),
            kind: self.rows.iter().map(|row| row.certificate.kind).min(),
            bar: bars.mean(),
            widest_bar: (bounded > 0).then_some(bars.widest),
            bounded,
            unbounded: bars.unbounded,
            error: errors.as_ref().map(|e| e.iter().sum::<f64>() / e.len().max(1) as f64),
            largest_error: errors.map(|e| e.into_iter().fold(0.0, f64::max)),
            violations: violations.map(|violations| violations.violated_rows),
            violated_steps: violations.map(|violations| violations.violated_steps),
        }
    }
}

#[pymethods]
impl PyOutput {
    /// A dict for each row, in the order of (query, query head): the number of tokens read, and the
    /// guarantee of the row. `pandas.DataFrame` accepts the list.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let rows = 0..self.rows.len();
        rows.map(|row| Ok(pythonize::pythonize(py, &self.row(row))?)).collect()
    }

    /// Totals and means over all rows, as a dict.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = pythonize::pythonize(py, &self.summarize())?;
        Ok(summary.cast_into()?)
    }

    /// The tokens read, with `return_selection=True`: `indptr` `[rows + 1]`, `indices` and
    /// `probabilities`. Row `r` read the tokens `indices[indptr[r]:indptr[r + 1]]`, ascending, each
    /// with its inclusion probability.
    #[getter]
    #[allow(clippy::type_complexity)] // Three arrays.
    fn selection<'py>(
        &self,
        py: Python<'py>,
    ) -> Option<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f32>>)>
    {
        let selection = self.selection.as_ref()?;
        let indptr: Vec<i64> = selection.indptr.iter().map(|&begin| begin as i64).collect();
        Some((
            PyArray1::from_vec(py, indptr),
            selection.indices.to_pyarray(py),
            selection.probabilities.to_pyarray(py),
        ))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let shape = self.out.bind(py).dims();
        let summary = self.summarize();
        format!(
            "<Output {shape:?}: {:.1} % read, {} of {} rows held>",
            100.0 * summary.density,
            summary.held,
            summary.rows
        )
    }
}
