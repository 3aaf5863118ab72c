//! Settings of an evaluation.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use vattention_core::Options;
use vattention_llm::Strategy;
use vattention_tasks::Task;

use crate::talk::Talk;

/// Which part of a prompt the pipeline reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Setup {
    /// None: the whole prompt is read by the prefill strategy, the answer is made by the pipeline.
    A,
    /// The question: only the context is read by the prefill strategy.
    B,
}

/// What is asked, and how.
#[derive(Clone, Debug)]
pub struct EvaluationSettings {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Tokens of a case: those of the context, the question and the room for the answer. A dataset's
    /// cases have at most so many.
    pub contexts: Vec<usize>,
    /// Cases of each task and length; of a dataset that has fewer, all.
    pub cases: usize,
    /// Equal seeds make equal cases.
    pub seed: u64,
    /// Who reads the question.
    pub setup: Setup,
    /// How the rest of a prompt is read, before the pipeline begins.
    pub prefill: Strategy,
    /// How cases are put to a model that chats; `None`: as texts that it goes on from.
    pub talk: Option<Talk>,
    /// Whether each step is compared with dense attention, which takes as long and as much memory
    /// again.
    pub errors: bool,
    /// Tasks on which the first dense variant scores less, from 0 to 1, are left out of means, length by length:
    /// the model cannot do them after such a prefill, whatever is read. 0 leaves out none.
    pub leave_out_below: f64,
    /// Cases that are asked at the same time, each on its share of the threads: the answers are the
    /// same. Each takes memory of its own.
    pub at_once: NonZeroUsize,
    /// How sequences run; each case has a sequence number of its own.
    pub options: Options,
}

impl Setup {
    /// `a` or `b`.
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
