//! What is the same in all steps of a pipeline: for what a routine is recorded.

use vattention_core::{Shape, Share, step::Score};

use crate::formula::{ClosedForm, Formula};
use crate::launch::RowLayout;
use crate::plan::{CodesStage, Op, Plan};

/// What a routine is recorded for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoutineKind {
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
    /// Ranges, and how many.
    Ranges(usize),
    /// The best by `q·k`.
    Logits(Score),
    /// The best by the bounds of pages, and the tokens of a page.
    Pages { score: Score, page: usize },
    /// The best by codes.
    Codes(CodesStage),
}

/// How large a sample is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// `None`: it is drawn at once.
    pub(crate) budget: Option<Formula>,
    pub(crate) checks: usize,
}

/// The smallest room that is made.
const LEAST: usize = 1024;

impl RoutineKind {
    /// The kind of a plan's steps, with room for `capacity` tokens.
    pub(crate) fn new(plan: &Plan, shape: Shape, layout: RowLayout, capacity: usize) -> Self {
        let mut stages: Vec<Stage> = Vec::new();
        for op in &plan.ops {
            match (op, stages.last_mut()) {
                (Op::Sink(_) | Op::Window(_), Some(Stage::Ranges(count))) => *count += 1,
                (Op::Sink(_) | Op::Window(_), _) => stages.push(Stage::Ranges(1)),
                (&Op::TopLogits { score, .. }, _) => stages.push(Stage::Logits(score)),
                (&Op::TopPages { score, page, .. }, _) => {
                    stages.push(Stage::Pages { score, page: page.get().min(capacity) });
                }
                (Op::TopCodes { codes, .. }, _) => stages.push(Stage::Codes(codes.clone())),
            }
        }
        let sample = plan.sample.as_ref().map(|sample| Sample {
            budget: match &sample.budget {
                ClosedForm::Size(_) => None,
                ClosedForm::Formula { formula, .. } => Some(formula.clone()),
            },
            checks: sample.checks,
        });
        Self { shape, layout, share: plan.share, stages, sample, capacity }
    }

    /// The room that is made for `tokens`, or for as many again at the most.
    pub(crate) fn capacity_for(tokens: usize) -> usize {
        tokens.next_power_of_two().max(LEAST)
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
            Self::Logits(score)
            | Self::Pages { score, .. }
            | Self::Codes(CodesStage { score, .. }) => *score == Score::Group,
        }
    }
}
