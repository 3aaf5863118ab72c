//! Settings of an evaluation.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use vattention_core::Options;
use vattention_llm::Strategy;
use vattention_tasks::Task;

use crate::talk::ChatPrompt;

/// Part of a prompt that the pipeline reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// No part: the prefill strategy reads the whole prompt, and only the answer uses the pipeline.
    A,
    /// The question: the prefill strategy reads only the context.
    B,
}

/// Settings of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// Tasks.
    pub tasks: Vec<Task>,
    /// Numbers of tokens of a case, including context, question and the longest answer; for a
    /// dataset, the largest number.
    pub contexts: Vec<usize>,
    /// Number of cases of each task and length; a smaller dataset is used completely.
    pub cases: usize,
    /// Seed of the cases: equal seeds give equal cases.
    pub seed: u64,
    /// Part of a prompt that the pipeline reads.
    pub setup: Setup,
    /// Prefill strategy, which reads the rest of a prompt before the pipeline begins.
    pub prefill: Strategy,
    /// Chat template of the prompts; `None` for prompts as plain texts that the model continues.
    pub talk: Option<ChatPrompt>,
    /// True to compare each step with dense attention, which takes the time and memory of dense
    /// attention in addition.
    pub errors: bool,
    /// Least score, from 0 to 1, of the first dense variant on a task at a length: tasks below it
    /// are left out of means, because the model cannot do them even with dense attention. 0 leaves
    /// out no task.
    pub leave_out_below: f64,
    /// Number of cases that run in parallel, each on its share of the threads and with memory of
    /// its own. The answers do not depend on this number.
    pub at_once: NonZeroUsize,
    /// Options of sequences; each case has its own sequence number.
    pub options: Options,
}

impl Setup {
    /// Returns `a` or `b`.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Setup {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = [Self::A, Self::B].into_iter().find(|setup| setup.name() == name);
        found.ok_or_else(|| "expected a or b".into())
    }
}
