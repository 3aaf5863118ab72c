//! A step that a machine takes by itself: what it needs to know, and what to report of it.

use crate::{
    Assumptions, Certificate, ClosedForm, Estimator, Kind, Order, Pipeline, RowReport, Schedule,
    Score, SelectorOp, Share, Step,
};

/// What the selectors and the estimator of one KV head do at one step.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Of each selector, in order, and of no more than the visible tokens. Together they take at
    /// least one.
    pub ops: Vec<SelectorOp<'a>>,
    /// Whether the query heads of the group read one list.
    pub share: Share,
    /// How large the sample of the rest is, if there is one.
    pub sample: Option<Sampled<'a>>,
}

/// A sample whose size has a closed form.
#[derive(Clone, Debug)]
pub struct Sampled<'a> {
    /// How many tokens it needs.
    pub budget: &'a ClosedForm,
    /// Tokens of the first look, or of the only draw.
    pub base: usize,
    /// How often it may be looked at; 0 if it is drawn at once.
    pub looks: usize,
    /// The largest norm of a visible value.
    pub max_norm_v: f64,
}

impl Sampled<'_> {
    /// Whether its size follows from a bound on the weights that the selectors leave. Then their
    /// ops tell it: it is the best `q·k` left over by the last that takes a query head's best.
    pub fn needs_bound(&self) -> bool {
        matches!(self.budget, ClosedForm::Formula { formula, .. } if formula.needs_bound())
    }
}

/// How much of one list was read.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Tokens that the row may read.
    pub visible: usize,
    /// Tokens that the selectors took.
    pub certain: usize,
    /// Tokens drawn of the rest.
    pub drawn: usize,
    /// Tokens that the last look asked for.
    pub budget: usize,
    /// Whether it found enough of them.
    pub held: bool,
    /// Different tokens that the group read together.
    pub read_by_group: usize,
}

impl Pipeline {
    /// What it does at a step, if a machine can do all of it by itself.
    pub fn plan(&self, step: &Step<'_>) -> Option<Plan<'_>> {
        let config = self.config();
        let drawn_otherwise = config.draws() && !config.sampler().is_uniform();
        if self.is_dense() || drawn_otherwise || self.needs_feedback() {
            return None;
        }
        let sample = match &config.estimator {
            None => None,
            Some(estimator) => Some(self.sampled(&**estimator, step)?),
        };
        let ops: Vec<SelectorOp<'_>> = self
            .selectors()
            .map(|selector| Some(selector.op(step)?.clipped(step.visible)))
            .collect::<Option<_>>()?;
        if ops.iter().all(|op| op.count() == 0) {
            return None;
        }
        let needs_bound = sample.as_ref().is_some_and(Sampled::needs_bound);
        if needs_bound && !self.told_bound(&ops) {
            return None;
        }
        Some(Plan { ops, share: config.share, sample })
    }

    /// The sample that an estimator asks for, if a machine can tell how large it is.
    fn sampled(&self, estimator: &dyn Estimator, step: &Step<'_>) -> Option<Sampled<'_>> {
        let budget = self.closed_form()?;
        let (base, looks) = match budget {
            ClosedForm::Size(size) => (size.of(step.visible), 0),
            ClosedForm::Formula { formula, .. } => {
                let rounds = match estimator.schedule() {
                    Schedule::Before if formula.needs_sample() => return None,
                    Schedule::Before => 0,
                    Schedule::Adaptive { rounds } | Schedule::FixedSizes { rounds } => rounds,
                };
                (self.config().sampler().base().of(step.visible), rounds)
            }
        };
        Some(Sampled { budget, base, looks, max_norm_v: self.max_norm_v(step.visible) })
    }

    /// Whether the bound on what the selectors leave is one that their ops tell: the best `q·k`
    /// left over by those that take a query head's best, and nobody else's.
    fn told_bound(&self, ops: &[SelectorOp<'_>]) -> bool {
        let bounding = || self.config().selectors.iter().map(|selector| selector.bounds_residual());
        let told =
            |op: &SelectorOp<'_>| matches!(op, SelectorOp::TopLogits { score: Score::Head, .. });
        bounding().any(|bounds| bounds) && bounding().eq(ops.iter().map(told))
    }

    /// The random order in which the sample of one list is drawn.
    pub fn order(&self, step: &Step<'_>, list: usize) -> Order {
        Order::new(step.visible, &self.sample_stream(step, list))
    }

    /// What to report of a row that reads a list of a plan.
    pub fn report(&self, plan: &Plan<'_>, counted: &Counted) -> RowReport {
        let &Counted { visible, certain, drawn, budget, held, read_by_group } = counted;
        let sample = plan.sample.as_ref().filter(|_| certain < visible);
        let (kind, assumes) = match sample.map(|sample| sample.budget) {
            _ if certain + drawn == visible => (Kind::Exact, Assumptions::NONE),
            Some(ClosedForm::Formula { kind, assumes, .. }) => (*kind, *assumes),
            Some(ClosedForm::Size(_)) | None => (Kind::None, Assumptions::NONE),
        };
        let held = kind == Kind::Exact || (sample.is_some() && held);
        RowReport {
            visible,
            certain,
            sampled: drawn,
            read_by_group,
            budget: sample.map(|_| budget),
            fell_back: false,
            unobserved: false,
            certificate: Certificate {
                promise: self.config().promise(),
                bar: self.config().goal().filter(|_| kind == Kind::Exact).map(|it| it.bar(0.0)),
                kind,
                assumes,
                held,
            },
        }
    }
}
