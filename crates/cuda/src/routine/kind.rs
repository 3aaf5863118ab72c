//! Properties that all steps of a pipeline share, for which a routine is recorded.

use vattention_core::{Shape, Share, step::Score};

use crate::formula::{ClosedForm, Formula};
use crate::launch::RowLayout;
use crate::plan::{CodesStage, Op, Plan};

/// Properties that a routine is recorded for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoutineKind {
    pub(crate) shape: Shape,
    pub(crate) layout: RowLayout,
    pub(crate) share: Share,
    pub(crate) stages: Vec<Stage>,
    pub(crate) sample: Option<SampleKind>,
    /// Largest number of tokens.
    pub(crate) capacity: usize,
}

/// Stage of a routine: one selector, or consecutive selectors that take ranges.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stage {
    /// A number of ranges.
    Ranges(usize),
    /// The tokens with the largest `q·k`.
    Logits(Score),
    /// The pages with the best bounds, of `page` tokens each.
    Pages { score: Score, page: usize },
    /// The tokens with the best codes.
    Codes(CodesStage),
}

/// Size of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleKind {
    /// Formula of the budget; `None` if the size is fixed.
    pub(crate) budget: Option<Formula>,
    pub(crate) checks: usize,
}

/// Smallest capacity of a routine.
const MIN_CAPACITY: usize = 1024;

impl RoutineKind {
    /// Kind of a plan's steps, with memory for `capacity` tokens.
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
        let sample = plan.sample.as_ref().map(|sample| SampleKind {
            budget: match &sample.budget {
                ClosedForm::Size(_) => None,
                ClosedForm::Formula { formula, .. } => Some(formula.clone()),
            },
            checks: sample.checks,
        });
        Self { shape, layout, share: plan.share, stages, sample, capacity }
    }

    /// Capacity for `tokens` tokens, the next power of two.
    pub(crate) fn capacity_for(tokens: usize) -> usize {
        tokens.next_power_of_two().max(MIN_CAPACITY)
    }

    /// Stage after which the upper bound on untaken logits is computed, if the budget needs it: the
    /// last stage that picks by a query head's own logits. Earlier stages leave no smaller logits.
    pub(crate) fn last_bound(&self) -> Option<usize> {
        self.sample.as_ref()?.budget.as_ref().filter(|budget| budget.needs_bound())?;
        self.stages.iter().rposition(|stage| *stage == Stage::Logits(Score::Head))
    }

    /// Number of token lists.
    pub(crate) fn lists(&self) -> usize {
        match self.share {
            Share::Group => self.shape.kv_heads,
            Share::Head => self.shape.query_heads,
        }
    }

    /// Number of query heads that use one token list.
    pub(crate) fn heads_per_list(&self) -> usize {
        self.shape.query_heads / self.lists()
    }

    /// Number of rows of picks: one for each query head, or one for each KV head if the group
    /// shares its picks and its list.
    pub(crate) fn rows(&self) -> usize {
        let alike = self.stages.iter().all(Stage::group_wide);
        if alike { self.lists() } else { self.shape.query_heads }
    }

    /// Number of rows whose picks form one list.
    pub(crate) fn members(&self) -> usize {
        self.rows() / self.lists()
    }

    /// Number of rows of one KV head.
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
