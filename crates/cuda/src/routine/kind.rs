//! What is the same in all steps of a pipeline: for what a routine is recorded.

use vattention_core::{ClosedForm, Formula, Plan, Recipe, Score, Shape, Share};

use crate::launch::RowLayout;

/// What a routine is recorded for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) shape: Shape,
    pub(crate) layout: RowLayout,
    pub(crate) share: Share,
    pub(crate) stages: Vec<Stage>,
    pub(crate) sample: Option<Sample>,
    /// Tokens that there is room for.
    pub(crate) capacity: usize,
}

/// What one selector does, or several that take ranges one after the other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stage {
    /// So many ranges.
    Ranges(usize),
    /// The best by `q·k`.
    Logits(Score),
    /// The best by codes of so many bits.
    Codes { score: Score, bits: usize },
}

/// How large a sample is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// `None`: it is drawn at once.
    pub(crate) budget: Option<Formula>,
    pub(crate) looks: usize,
}

/// The smallest room that is made.
const LEAST: usize = 1024;

impl Kind {
    /// Of a plan, with room for `tokens` and as many again at the most.
    pub(crate) fn new(plan: &Plan<'_>, shape: Shape, layout: RowLayout, tokens: usize) -> Self {
        let mut stages: Vec<Stage> = Vec::new();
        for recipe in &plan.recipes {
            match (recipe, stages.last_mut()) {
                (Recipe::Range(_), Some(Stage::Ranges(count))) => *count += 1,
                (Recipe::Range(_), _) => stages.push(Stage::Ranges(1)),
                (&Recipe::TopLogits { score, .. }, _) => stages.push(Stage::Logits(score)),
                (Recipe::TopCodes { score, codes, .. }, _) => {
                    stages.push(Stage::Codes { score: *score, bits: codes.bits });
                }
            }
        }
        let sample = plan.sample.as_ref().map(|sample| match sample.budget {
            ClosedForm::Size(_) => Sample { budget: None, looks: 0 },
            ClosedForm::Formula { formula, .. } => {
                Sample { budget: Some(formula.clone()), looks: sample.looks }
            }
        });
        let capacity = tokens.next_power_of_two().max(LEAST);
        Self { shape, layout, share: plan.share, stages, sample, capacity }
    }

    /// The stage that leaves the bound that budgets follow from, if they do: the last that picks by a
    /// query head's own logits. Those before it leave no less.
    pub(crate) fn last_bound(&self) -> Option<usize> {
        self.sample.as_ref()?.budget.as_ref().filter(|budget| budget.needs_bound())?;
        self.stages.iter().rposition(|stage| *stage == Stage::Logits(Score::Head))
    }

    /// Lists that are read.
    pub(crate) fn lists(&self) -> usize {
        match self.share {
            Share::Group => self.shape.kv_heads,
            Share::Head => self.shape.query_heads,
        }
    }

    /// Query heads that read one list.
    pub(crate) fn readers(&self) -> usize {
        self.shape.query_heads / self.lists()
    }

    /// Rows that pick: one for each query head, or for each KV head if all of them pick alike and
    /// read one list.
    pub(crate) fn rows(&self) -> usize {
        let alike = self.stages.iter().all(Stage::group_wide);
        if alike { self.lists() } else { self.shape.query_heads }
    }

    /// Rows whose picks make one list.
    pub(crate) fn members(&self) -> usize {
        self.rows() / self.lists()
    }

    /// Rows of one KV head.
    pub(crate) fn rows_of_head(&self) -> usize {
        self.rows() / self.shape.kv_heads
    }
}

impl Stage {
    fn group_wide(&self) -> bool {
        match self {
            Self::Ranges(_) => true,
            Self::Logits(score) | Self::Codes { score, .. } => *score == Score::Group,
        }
    }

    /// Codes that are compared for one row of a group.
    pub(crate) fn compared(&self, group: usize) -> usize {
        match self {
            Self::Codes { score: Score::Group, .. } => group,
            Self::Codes { score: Score::Head, .. } => 1,
            Self::Ranges(_) | Self::Logits(_) => 0,
        }
    }
}
