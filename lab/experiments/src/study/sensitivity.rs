//! `sensitivity`: error and density of the natural configuration, with one parameter varied at a
//! time.
//!
//! The estimator is `clt` with the paper's constants, for promises on the denominator and on the
//! numerator.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Backend, Size, Target};
use vattention_trace::Trace;

use super::natural::{Natural, fraction};
use crate::{Entry, PipelineResult, Result, Results, TraceSettings, compare};

/// A parameter with its values; the natural value is among them.
struct Parameter {
    name: &'static str,
    values: &'static [f64],
    set: fn(&mut Natural, f64),
}

static PARAMETERS: [Parameter; 6] = [
    Parameter { name: "sink", values: &EDGES, set: |natural, x| natural.sink = tokens(x) },
    Parameter { name: "window", values: &EDGES, set: |natural, x| natural.window = tokens(x) },
    Parameter { name: "top-k", values: &SHARES, set: |natural, x| natural.top_k = share(x) },
    Parameter { name: "base", values: &SHARES, set: |natural, x| natural.base = share(x) },
    Parameter { name: "epsilon", values: &RISKS, set: |natural, x| natural.epsilon = fraction(x) },
    Parameter { name: "delta", values: &RISKS, set: |natural, x| natural.delta = fraction(x) },
];
const EDGES: [f64; 5] = [8.0, 32.0, 128.0, 256.0, 512.0];
const SHARES: [f64; 5] = [0.01, 0.025, 0.05, 0.1, 0.2];
const RISKS: [f64; 5] = [0.025, 0.05, 0.1, 0.2, 0.4];

const TARGETS: [Target; 2] = [Target::Denominator, Target::Numerator];

fn tokens(x: f64) -> Size {
    Size::Tokens(x as usize)
}

fn share(x: f64) -> Size {
    Size::Share(fraction(x))
}

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Sensitivity {
    /// File of the trace, as given.
    pub trace: String,
    /// Name of the backend.
    pub backend: String,
    /// Results by target, parameter and value.
    pub variations: Vec<Variation>,
}

/// The natural configuration with one parameter at some value.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Variation {
    /// Target of the promise.
    pub target: Target,
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Value of the parameter.
    pub value: f64,
    /// True for the natural value.
    pub natural: bool,
    /// Share of the visible tokens that the query heads of a KV head read together, mean over rows.
    pub density: f64,
    /// Relative error of the target, mean over rows.
    pub target_error: f64,
    /// Relative error of the output, mean over rows.
    pub output_error: f64,
}

/// Measures every variation. `progress` is called as by [`compare`].
///
/// # Errors
/// If a setting does not fit the trace, or the trace is damaged.
pub fn sensitivity(
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<Sensitivity> {
    let cases: Vec<ParameterCase> = TARGETS.into_iter().flat_map(list_cases).collect();
    let entry = |case: &ParameterCase| Entry {
        pipeline: case.natural().pipeline(case.target),
        file: format!("the natural configuration, {} = {}", case.parameter.name, case.value),
        set: None,
    };
    let entries: Vec<Entry> = cases.iter().map(entry).collect();
    let (comparison, _) = compare(&entries, trace, backend, settings, results, progress)?;
    let measured = cases.iter().zip(&comparison.pipelines);
    let variations = measured.map(|(case, measured)| case.variation(measured)).collect();
    Ok(Sensitivity { trace: comparison.trace, backend: comparison.backend, variations })
}

/// One value of one parameter, for a promise on one target.
struct ParameterCase {
    target: Target,
    parameter: &'static Parameter,
    value: f64,
}

fn list_cases(target: Target) -> impl Iterator<Item = ParameterCase> {
    PARAMETERS.iter().flat_map(move |parameter| {
        parameter.values.iter().map(move |&value| ParameterCase { target, parameter, value })
    })
}

impl ParameterCase {
    fn natural(&self) -> Natural {
        let mut natural = Natural::default();
        (self.parameter.set)(&mut natural, self.value);
        natural
    }

    fn variation(&self, measured: &PipelineResult) -> Variation {
        let target_error = match self.target {
            Target::Denominator => measured.denominator_error,
            Target::Numerator => measured.numerator_error,
            Target::Sdpa => measured.output_error,
        };
        Variation {
            target: self.target,
            parameter: self.parameter.name,
            value: self.value,
            natural: self.natural() == Natural::default(),
            density: measured.density,
            target_error: target_error.mean,
            output_error: measured.output_error.mean,
        }
    }
}
