//! What is found.

use std::sync::Arc;

use serde::Serialize;
use vattention_core::{Fraction, PipelineConfig};

use super::{TuningGoal, TuningScore};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Tuning {
    /// Files of the traces that settings were chosen on.
    pub traces: Vec<String>,
    /// Files of the traces that the chosen settings were measured on besides.
    pub held_out: Vec<String>,
    /// The backend's name.
    pub backend: String,
    /// Queries of each layer, rung by rung.
    pub queries: Vec<usize>,
    /// Everything that was measured, methods in their order.
    pub tried: Vec<Tried>,
    /// For each method and goal, what is best; without goals, the front of all methods.
    pub best: Vec<Best>,
    /// What could not be measured.
    pub left_out: Vec<LeftOutCandidate>,
}

/// A candidate, as it was measured last.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Its method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// Its file.
    pub file: String,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// The density that it was made to read, if it was.
    pub density: Option<Fraction>,
    /// What was set so that it does.
    pub set: Option<String>,
    /// The last rung that it reached, from 0.
    pub rung: usize,
    /// What it came to there.
    pub score: TuningScore,
    /// Whether nothing that reached the last rung, of any method, beats it.
    pub front: bool,
    /// The pipeline, with what was set.
    #[serde(skip)]
    pub pipeline: Arc<PipelineConfig>,
}

/// The best of a method for a goal.
#[derive(Clone, Debug, Serialize)]
pub struct Best {
    /// The method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// What for; `None`: it is on the front.
    pub goal: Option<TuningGoal>,
    /// Its number in [`Tuning::tried`]; `None` if no candidate meets the goal.
    pub tried: Option<usize>,
    /// The number of the candidate that comes nearest to the goal, if none meets it.
    pub nearest: Option<usize>,
    /// What it came to on the held-out texts, if there are any.
    pub held_out: Option<TuningScore>,
}

/// A candidate that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOutCandidate {
    /// Its method.
    #[serde(rename = "pipeline")]
    pub method: String,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// Why not.
    pub reason: String,
}
