//! Log of single steps: each layer's error against dense attention, density and error bars.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention::Target;
use vattention::experiments::Bars;
use vattention_evaluate::{LayerAttention, ObservedBackend, Observer};
use vattention_llm::{Generation, LayerReport, Session, Stop, TextGenerator};

use super::request::Request;
use super::saved_session::SessionFiles;
use crate::fail::Failure;
use crate::models::sampling_args::name_option;
use crate::progress;

/// Document that `--steps` writes, and `plot-steps` reads.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StepsDocument {
    /// Model, as given.
    pub(crate) model: String,
    /// Name of the pipeline.
    pub(crate) pipeline: String,
    /// Part of the prompt that the pipeline reads: `a` for no part, `b` for the question.
    pub(crate) setup: String,
    /// Comparison with the answer by dense attention; `None` if the answer was interrupted.
    pub(crate) beside: Option<DenseComparison>,
    /// Steps with the pipeline.
    pub(crate) steps: Vec<StepRow>,
}

/// One step; vectors have an element per layer.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StepRow {
    /// Length of the sequence after the step.
    pub(crate) tokens: usize,
    /// Mean relative error of the query heads; `None` if it is not finite.
    pub(crate) error: Vec<Option<f32>>,
    /// Share of the visible tokens that a KV head's query heads read together.
    pub(crate) density: Vec<f32>,
    /// Mean radius of the error bars; `None` if there are none.
    pub(crate) bar: Vec<Option<f32>>,
    /// Query heads that have an error bar and did not read all tokens.
    pub(crate) barred: Vec<usize>,
    /// Query heads of `barred` whose error was larger than the bar.
    pub(crate) outside: Vec<usize>,
}

/// Number of errors outside of their error bars, over all steps and layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct OutsideCount {
    /// Rows that have an error bar and did not read all tokens.
    pub(crate) rows: usize,
    /// Rows whose error was larger than the bar.
    pub(crate) outside: usize,
}

/// Comparison of an answer with the answer by dense attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DenseComparison {
    /// Tokens that were compared; a token that ended the text is included.
    pub(crate) compared: usize,
    /// Tokens before the first difference.
    pub(crate) same: usize,
}

/// Errors of each layer's attention at the last step.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    layers: Vec<LayerErrors>,
}

/// Mean error of a layer's query heads, and their error bars.
#[derive(Clone, Copy, Debug, Default)]
struct LayerErrors {
    mean: f64,
    bars: Bars,
}

/// Log of all steps so far.
pub(in crate::models) struct StepLog<'w> {
    observed: &'w ObservedBackend<'w, ErrorLog>,
    steps: Vec<StepRow>,
}

impl Observer for ErrorLog {
    fn observe(&mut self, attended: &LayerAttention<'_>) {
        let errors = attended.errors();
        let sum: f64 = errors.iter().map(|row| row.relative(Target::Sdpa)).sum();
        let mut bars = Bars::default();
        for (error, row) in errors.iter().zip(&attended.output.rows) {
            bars.add_row(&row.certificate, error);
        }
        let count = self.layers.len().max(attended.layer + 1);
        let unknown = LayerErrors { mean: f64::NAN, ..LayerErrors::default() };
        self.layers.resize(count, unknown);
        self.layers[attended.layer] = LayerErrors { mean: sum / errors.len() as f64, bars };
    }
}

impl<'w> StepLog<'w> {
    pub(super) fn new(observed: &'w ObservedBackend<'w, ErrorLog>) -> Self {
        Self { observed, steps: Vec::new() }
    }

    /// Adds a session's last step.
    pub(super) fn add(&mut self, session: &Session<'_>) {
        let finite = |x: f64| x.is_finite().then_some(x as f32);
        let mean = |radii: Vec<f64>| radii.iter().sum::<f64>() / radii.len() as f64;
        let reports = session.reports();
        let observer = self.observed.observer();
        let errors = &observer.layers;
        self.steps.push(StepRow {
            tokens: session.len(),
            error: errors.iter().map(|layer| finite(layer.mean)).collect(),
            density: reports.iter().map(|layer| layer.density() as f32).collect(),
            bar: reports.iter().map(|layer| finite(mean(radii(layer).collect()))).collect(),
            barred: errors.iter().map(|layer| layer.bars.rows).collect(),
            outside: errors.iter().map(|layer| layer.bars.outside).collect(),
        });
    }

    /// Counts the errors outside of their error bars.
    pub(super) fn outside(&self) -> OutsideCount {
        OutsideCount::count(&self.steps)
    }

    pub(super) fn into_steps(self) -> Vec<StepRow> {
        self.steps
    }
}

impl OutsideCount {
    pub(crate) fn count(steps: &[StepRow]) -> Self {
        let sum = |layers: fn(&StepRow) -> &Vec<usize>| steps.iter().flat_map(layers).sum();
        Self { rows: sum(|step| &step.barred), outside: sum(|step| &step.outside) }
    }
}

impl fmt::Display for OutsideCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.outside, self.rows)
    }
}

impl DenseComparison {
    /// Generates an answer to the same request in an empty dense session, up to the first
    /// difference. `generator` has the parameters of the answer, and has chosen no token yet.
    pub(super) fn new(
        mut session: Session<'_>,
        mut generator: TextGenerator<'_>,
        request: &Request,
        files: &mut SessionFiles,
        answer: &Generation,
    ) -> Result<Self, Failure> {
        let logits = files.read(&mut session, &request.dense)?;
        let mut logits = session.steps(logits, &request.sparse)?;
        let bar = progress::bar("tokens by dense attention");
        let end = match answer.stop {
            Stop::End(token) | Stop::StopToken(token) => Some(token),
            Stop::StopString(_) | Stop::Length | Stop::Interrupted => None,
        };
        let expected: Vec<u32> = answer.tokens.iter().copied().chain(end).collect();
        let mut same = 0;
        for (place, &token) in expected.iter().enumerate() {
            if generator.choose(&logits).map_err(name_option)?.choice.token != token {
                break;
            }
            same = place + 1;
            progress::show(&bar, same, expected.len());
            if same < expected.len() {
                logits = session.step(token)?;
            }
        }
        bar.finish_and_clear();
        Ok(Self { compared: expected.len(), same })
    }
}

impl fmt::Display for DenseComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compared, same } = self;
        if same == compared {
            return write!(f, "the same text; tokens compared: {compared}");
        }
        write!(f, "departs after {same} of {compared} tokens")
    }
}

/// Returns the radii of the finite error bars of a layer's rows.
pub(super) fn radii(report: &LayerReport) -> impl Iterator<Item = f64> + '_ {
    let bars = report.rows.iter().filter_map(|row| row.certificate.bar);
    bars.map(|bar| bar.radius).filter(|radius| radius.is_finite())
}
