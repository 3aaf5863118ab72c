//! The plan of a layer: its pipeline as operations of the device, read from the parts by their types.
//!
//! The parts that have kernels are known here and in `formula`, and nowhere else.

use std::any::Any;
use std::num::NonZeroUsize;
use std::ops::Range;

use vattention_core::{
    Estimator, Pipeline, PipelineConfig, SamplerConfig, Selector, SelectorConfig, Shape, Share,
    Size,
    plugin::{Schedule, Uniform},
    step::Score,
};
use vattention_selectors::{CodeMap, HashAttention, HashIndex, OracleTopK, Quest, Sink, Window};

use crate::Driver;
use crate::formula::ClosedForm;
use crate::launch::{Encode, NetworkShape, RowLayout};

/// The operations of every step of one layer of one sequence.
#[derive(Debug)]
pub(crate) struct Plan {
    /// One for each selector, in order. Together they take at least one token.
    pub(crate) ops: Vec<Op>,
    pub(crate) share: Share,
    /// The sample of the other tokens, if there is one.
    pub(crate) sample: Option<PlannedSample>,
}

/// A selector: how it picks tokens, among those that no selector before it took.
#[derive(Debug)]
pub(crate) enum Op {
    /// The first tokens.
    Sink(Size),
    /// The last visible tokens.
    Window(Size),
    /// The tokens with the largest `q·k`; here and below, the lower index first among equals.
    TopLogits { size: Size, score: Score },
    /// The tokens of the pages whose keys can reach the largest products with the query: the sum over
    /// channels of the larger one of the query's products with the page's least and largest key. Of
    /// the page in which the visible tokens end, visible keys alone count.
    TopPages { size: Size, score: Score, page: NonZeroUsize },
    /// The tokens whose codes agree with the query's in the most bits.
    TopCodes {
        size: Size,
        codes: CodesStage,
        /// The maps of each KV head: one for all members of the group, or one for each.
        maps: Vec<Vec<CodeMap>>,
    },
}

/// The codes that an operation compares: what kernels are compiled and recorded for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CodesStage {
    /// The queries that count: of a group, the agreeing bits are summed over its members.
    pub(crate) score: Score,
    /// Maps of a KV head.
    pub(crate) maps: usize,
    /// The shapes of their networks of keys, and of queries.
    pub(crate) key: NetworkShape,
    pub(crate) query: NetworkShape,
}

/// A sample whose size follows from a formula.
#[derive(Debug)]
pub(crate) struct PlannedSample {
    pub(crate) budget: ClosedForm,
    /// Tokens of the first check, or of the only draw.
    pub(crate) base: Size,
    /// How often the sample may be checked; 0 if it is drawn at once.
    pub(crate) checks: usize,
}

impl Plan {
    /// The plan of the KV heads with these pipelines, if every part has kernels.
    pub(crate) fn new(pipelines: &[Pipeline], layout: RowLayout) -> Option<Self> {
        let (config, shape) = (pipelines[0].config(), pipelines[0].site().shape);
        if pipelines[0].is_dense() {
            return None;
        }
        let op = |place: usize| {
            let workers = pipelines.iter().filter_map(|pipeline| pipeline.selectors().nth(place));
            Op::new(&*config.selectors[place], workers, shape, layout)
        };
        let ops: Vec<Op> = (0..config.selectors.len()).map(op).collect::<Option<_>>()?;
        let sample = match config.estimator.as_deref() {
            Some(estimator) => Some(PlannedSample::new(estimator, config.sampler(), shape)?),
            None if config.draws() => return None,
            None => None,
        };
        let takes_none = ops.iter().all(|op| op.count(1) == 0);
        let lacks_bound =
            sample.as_ref().is_some_and(PlannedSample::needs_bound) && !finds_bound(config, &ops);
        (!takes_none && !lacks_bound).then_some(Self { ops, share: config.share, sample })
    }
}

/// Whether the device can find the bound on the logits that the selectors leave: the best `q·k` left
/// over by those that take a query head's best, if no other selector proves a bound.
fn finds_bound(config: &PipelineConfig, ops: &[Op]) -> bool {
    let bounding = || config.selectors.iter().map(|selector| selector.bounds_residual());
    let found = |op: &Op| matches!(op, Op::TopLogits { score: Score::Head, .. });
    bounding().any(|bounds| bounds) && bounding().eq(ops.iter().map(found))
}

impl Op {
    /// The operation of a selector with these workers, one for each KV head, if there are kernels for
    /// it.
    fn new<'a>(
        config: &dyn SelectorConfig,
        workers: impl Iterator<Item = &'a dyn Selector>,
        shape: Shape,
        layout: RowLayout,
    ) -> Option<Self> {
        let config: &dyn Any = config;
        if let Some(&Sink { size }) = config.downcast_ref() {
            Some(Self::Sink(size))
        } else if let Some(&Window { size }) = config.downcast_ref() {
            Some(Self::Window(size))
        } else if let Some(&OracleTopK { size, score }) = config.downcast_ref() {
            Some(Self::TopLogits { size, score })
        } else if let Some(&Quest { size, page, bits, score }) = config.downcast_ref() {
            (bits.get() == 0).then_some(Self::TopPages { size, score, page })
        } else if let Some(&HashAttention { size, score, .. }) = config.downcast_ref() {
            let index = |worker| (worker as &dyn Any).downcast_ref::<HashIndex>();
            let maps = |worker| Some(index(worker)?.maps().cloned().collect());
            let maps: Vec<Vec<CodeMap>> = workers.map(maps).collect::<Option<_>>()?;
            let codes = CodesStage::new(score, &maps, shape, layout)?;
            Some(Self::TopCodes { size, codes, maps })
        } else {
            None
        }
    }

    /// The number of tokens that it takes of `visible` ones, if none of them is taken.
    pub(crate) fn count(&self, visible: usize) -> usize {
        match self {
            Self::Sink(size)
            | Self::Window(size)
            | Self::TopLogits { size, .. }
            | Self::TopPages { size, .. }
            | Self::TopCodes { size, .. } => size.to_tokens(visible),
        }
    }

    /// The range that it takes of `visible` tokens, if it takes a range.
    pub(crate) fn range(&self, visible: usize) -> Option<Range<usize>> {
        match self {
            Self::Sink(_) => Some(0..self.count(visible)),
            Self::Window(_) => Some(visible - self.count(visible)..visible),
            Self::TopLogits { .. } | Self::TopPages { .. } | Self::TopCodes { .. } => None,
        }
    }
}

impl CodesStage {
    /// The codes by the maps of all KV heads, if there are kernels for them.
    fn new(score: Score, maps: &[Vec<CodeMap>], shape: Shape, layout: RowLayout) -> Option<Self> {
        let first = maps.first()?.first()?;
        let [key, query] = [first.key(), first.query()].map(|network| NetworkShape::of(network));
        let codes = Self { score, maps: maps[0].len(), key, query };
        let CodesStage { key, query, maps: count, .. } = &codes;
        let alike = |map: &CodeMap| key.is_of(map.key()) && query.is_of(map.query());
        let takes = (*count == 1 || *count == shape.group())
            && maps.iter().all(|maps| maps.len() == *count && maps.iter().all(alike))
            && [key, query].iter().all(|network| Encode::<Driver>::check(layout, network).is_ok())
            && u16::try_from(codes.compared(shape.group()) * codes.bits()).is_ok();
        takes.then_some(codes)
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

    /// The map that makes the codes that are compared with a member's query.
    pub(crate) fn map_of(&self, member: usize) -> usize {
        if self.maps == 1 { 0 } else { member }
    }
}

impl PlannedSample {
    /// The sample that an estimator asks of a sampler, if there are kernels for both.
    fn new(estimator: &dyn Estimator, sampler: &dyn SamplerConfig, shape: Shape) -> Option<Self> {
        let &Uniform { base } = (sampler as &dyn Any).downcast_ref()?;
        let budget = ClosedForm::of_estimator(estimator, shape.query_heads, shape.value_dim)?;
        let (base, checks) = match &budget {
            ClosedForm::Size(size) => (*size, 0),
            ClosedForm::Formula { .. } => match estimator.schedule() {
                Schedule::Before => (base, 0),
                Schedule::Adaptive { rounds } => (base, rounds),
                Schedule::FixedSizes { .. } => return None,
            },
        };
        Some(Self { budget, base, checks })
    }

    /// Whether its size follows from a bound on the weights that the selectors leave.
    fn needs_bound(&self) -> bool {
        matches!(&self.budget, ClosedForm::Formula { formula, .. } if formula.needs_bound())
    }
}
