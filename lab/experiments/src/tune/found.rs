//! Result of the search for the best settings.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Fraction, PipelineConfig};

use super::{TuningGoal, TuningScore};

/// Result of the search for the best settings.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tuning {
    /// Files of the traces on which settings were chosen.
    pub traces: Vec<String>,
    /// Files of the held-out traces, on which only the best settings were measured.
    pub held_out: Vec<String>,
    /// Name of the backend.
    pub backend: String,
    /// Number of queries of each layer, rung by rung.
    pub queries: Vec<usize>,
    /// All measured candidates, by method in the order given.
    pub tried: Vec<TriedCandidate>,
    /// Best candidate of each method for each goal; without goals, the Pareto front of all methods.
    pub best: Vec<BestCandidate>,
    /// Candidates that could not be measured.
    pub left_out: Vec<LeftOutCandidate>,
}

/// A candidate, with its measurement on the last rung that it reached.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TriedCandidate {
    /// Method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// File of the pipeline, as given.
    pub file: String,
    /// Varied settings, as keys with their values.
    pub settings: Vec<(String, String)>,
    /// Density that the pipeline was tuned to; `None` if it has its own settings.
    pub density: Option<Fraction>,
    /// Settings that tune the pipeline to that density.
    pub set: Option<String>,
    /// Last rung that the candidate reached, from 0.
    pub rung: usize,
    /// Measurement on that rung.
    pub score: TuningScore,
    /// True on the Pareto front of all candidates, of any method, that reached the last rung.
    pub front: bool,
    /// The pipeline, tuned if `density` is given.
    #[serde(skip)]
    pub pipeline: Arc<PipelineConfig>,
}

/// Best candidate of a method for a goal.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BestCandidate {
    /// Method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// Goal; `None` for a candidate on the Pareto front.
    #[schemars(with = "Option<String>")]
    pub goal: Option<TuningGoal>,
    /// Index of the candidate in [`Tuning::tried`]; `None` if no candidate meets the goal.
    pub tried: Option<usize>,
    /// Index of the candidate nearest to the goal, if no candidate meets the goal.
    pub nearest: Option<usize>,
    /// Measurement on the held-out texts, if there are any.
    pub held_out: Option<TuningScore>,
}

/// A candidate that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct LeftOutCandidate {
    /// Method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// Varied settings, as keys with their values.
    pub settings: Vec<(String, String)>,
    /// Reason.
    pub reason: String,
}
