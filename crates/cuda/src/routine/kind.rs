//! What is the same in all steps of a pipeline: for what a routine is recorded.

use vattention_core::{
    ClosedForm, Formula, HashCodes, Plan, SelectorOp, Shape, Share, step::Score,
};

use crate::Driver;
use crate::launch::{Encode, NetworkShape, RowLayout};

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
    /// Ranges, and how many.
    Ranges(usize),
    /// The best by `q·k`.
    Logits(Score),
    /// The best by the bounds of pages, and the tokens of a page.
    Pages { score: Score, page: usize },
    /// The best by codes.
    Codes(CodesStage),
}

/// What is the same in all steps that compare codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CodesStage {
    pub(crate) score: Score,
    /// Maps of a KV head.
    pub(crate) maps: usize,
    /// Their networks of keys, and of queries.
    pub(crate) key: NetworkShape,
    pub(crate) query: NetworkShape,
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
    /// Of a plan, with room for `tokens` and as many again at the most; `None` if there are no kernels
    /// for it.
    pub(crate) fn new(
        plan: &Plan<'_>,
        shape: Shape,
        layout: RowLayout,
        tokens: usize,
    ) -> Option<Self> {
        let capacity = tokens.next_power_of_two().max(LEAST);
        let mut stages: Vec<Stage> = Vec::new();
        for op in &plan.ops {
            match (op, stages.last_mut()) {
                (SelectorOp::Range(_), Some(Stage::Ranges(count))) => *count += 1,
                (SelectorOp::Range(_), _) => stages.push(Stage::Ranges(1)),
                (&SelectorOp::TopLogits { score, .. }, _) => stages.push(Stage::Logits(score)),
                (&SelectorOp::TopPages { score, page, .. }, _) => {
                    stages.push(Stage::Pages { score, page: page.get().min(capacity) });
                }
                (SelectorOp::TopCodes { score, codes, .. }, _) => {
                    let stage = CodesStage::new(*score, codes)?;
                    stages.push(Stage::Codes(stage.takes(shape, layout).then_some(stage)?));
                }
            }
        }
        let sample = plan.sample.as_ref().map(|sample| match sample.budget {
            ClosedForm::Size(_) => Sample { budget: None, looks: 0 },
            ClosedForm::Formula { formula, .. } => {
                Sample { budget: Some(formula.clone()), looks: sample.looks }
            }
        });
        Some(Self { shape, layout, share: plan.share, stages, sample, capacity })
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

impl CodesStage {
    /// Of maps that are alike.
    fn new(score: Score, codes: &HashCodes<'_>) -> Option<Self> {
        let first = codes.maps.first()?;
        let [key, query] = [first.key(), first.query()].map(|network| NetworkShape::of(network));
        let alike = codes.maps.iter().all(|map| key.is_of(map.key()) && query.is_of(map.query()));
        alike.then_some(Self { score, maps: codes.maps.len(), key, query })
    }

    /// Whether there are kernels for it.
    fn takes(&self, shape: Shape, layout: RowLayout) -> bool {
        let networks = [&self.key, &self.query];
        (self.maps == 1 || self.maps == shape.group())
            && networks.iter().all(|network| Encode::<Driver>::check(layout, network).is_ok())
            && u16::try_from(self.compared(shape.group()) * self.bits()).is_ok()
    }

    /// Bits of a code.
    pub(crate) fn bits(&self) -> usize {
        self.key.outputs()
    }

    /// Codes that are compared for one row of a group.
    pub(crate) fn compared(&self, group: usize) -> usize {
        match self.score {
            Score::Group => group,
            Score::Head => 1,
        }
    }
}
