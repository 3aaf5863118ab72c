//! Translation of a pipeline into operations of the device, by the types of its parts.
//!
//! Only this module and `formula` know which parts have kernels. They recognise the types by `Any`,
//! a supertrait of plug-ins, so that plug-ins need no methods for devices.

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

/// Operations of every step of one layer of one sequence.
#[derive(Debug)]
pub(crate) struct Plan {
    /// One operation per selector, in order. Together they take at least one token.
    pub(crate) ops: Vec<Op>,
    pub(crate) share: Share,
    /// Sample of the untaken tokens, if the pipeline draws one.
    pub(crate) sample: Option<PlannedSample>,
}

/// Operation of a selector, which picks tokens that no earlier selector took.
#[derive(Debug)]
pub(crate) enum Op {
    /// The first tokens.
    Sink(Size),
    /// The last visible tokens.
    Window(Size),
    /// The tokens with the largest `q·k`. In all operations the lower index goes first among
    /// equals.
    TopLogits { size: Size, score: Score },
    /// The tokens of the pages with the largest upper bounds on `q·k`: the sum over channels of the
    /// larger of the query's products with the page's smallest and largest key. In the last page
    /// only visible keys count.
    TopPages { size: Size, score: Score, page: NonZeroUsize },
    /// The tokens whose codes agree with the query's in the largest number of bits.
    TopCodes {
        size: Size,
        codes: CodesStage,
        /// Maps of each KV head: one for the whole group, or one for each query head.
        maps: Vec<Vec<CodeMap>>,
    },
}

/// Shape of the codes that an operation compares, for which kernels are compiled and recorded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CodesStage {
    /// Queries that are compared; `Score::Group` sums the agreeing bits over the group.
    pub(crate) score: Score,
    /// Number of maps of a KV head.
    pub(crate) maps: usize,
    /// Shapes of the networks for keys and for queries.
    pub(crate) key: NetworkShape,
    pub(crate) query: NetworkShape,
}

/// A sample whose size follows from a formula.
#[derive(Debug)]
pub(crate) struct PlannedSample {
    pub(crate) budget: ClosedForm,
    /// Sample size at the first check, or at the only draw.
    pub(crate) base: Size,
    /// Maximum number of checks; 0 if the sample is drawn in one step.
    pub(crate) checks: usize,
}

impl Plan {
    /// Plans the steps of KV heads with these pipelines. Returns `None` if a part has no kernels.
    pub(crate) fn new(pipelines: &[Pipeline], layout: RowLayout) -> Option<Self> {
        let (config, shape) = (pipelines[0].config(), pipelines[0].site().shape);
        if pipelines[0].is_dense() {
            return None;
        }
        let op = |place: usize| {
            let selectors = pipelines.iter().filter_map(|pipeline| pipeline.selectors().nth(place));
            Op::new(&*config.selectors[place], selectors, shape, layout)
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

/// Returns true if the device can find an upper bound on the untaken logits.
///
/// The device finds the best untaken `q·k`. That is the proved bound if the selectors that prove
/// bounds are exactly those that take the best `q·k` of single query heads.
fn finds_bound(config: &PipelineConfig, ops: &[Op]) -> bool {
    let bounding = || config.selectors.iter().map(|selector| selector.bounds_residual());
    let found = |op: &Op| matches!(op, Op::TopLogits { score: Score::Head, .. });
    bounding().any(|bounds| bounds) && bounding().eq(ops.iter().map(found))
}

impl Op {
    /// Translates a selector, given its index of each KV head. Returns `None` if it has no kernels.
    fn new<'a>(
        config: &dyn SelectorConfig,
        selectors: impl Iterator<Item = &'a dyn Selector>,
        shape: Shape,
        layout: RowLayout,
    ) -> Option<Self> {
        let config: &dyn Any = config;
        if let Some(&Sink { size }) = config.downcast_ref() {
            Some(Self::Sink(size))
        } else if let Some(&Window { size, aligned: false }) = config.downcast_ref() {
            Some(Self::Window(size))
        } else if let Some(&OracleTopK { size, score }) = config.downcast_ref() {
            Some(Self::TopLogits { size, score })
        } else if let Some(&Quest { size, page, bits, score }) = config.downcast_ref() {
            (bits.get() == 0).then_some(Self::TopPages { size, score, page })
        } else if let Some(&HashAttention { size, score, .. }) = config.downcast_ref() {
            let index = |selector| (selector as &dyn Any).downcast_ref::<HashIndex>();
            let maps = |selector| Some(index(selector)?.maps().cloned().collect());
            let maps: Vec<Vec<CodeMap>> = selectors.map(maps).collect::<Option<_>>()?;
            let codes = CodesStage::new(score, &maps, shape, layout)?;
            Some(Self::TopCodes { size, codes, maps })
        } else {
            None
        }
    }

    /// Number of tokens that the operation takes of `visible` untaken ones.
    pub(crate) fn count(&self, visible: usize) -> usize {
        match self {
            Self::Sink(size)
            | Self::Window(size)
            | Self::TopLogits { size, .. }
            | Self::TopPages { size, .. }
            | Self::TopCodes { size, .. } => size.to_tokens(visible),
        }
    }

    /// Range of tokens that the operation takes of `visible` ones, if it takes a range.
    pub(crate) fn range(&self, visible: usize) -> Option<Range<usize>> {
        match self {
            Self::Sink(_) => Some(0..self.count(visible)),
            Self::Window(_) => Some(visible - self.count(visible)..visible),
            Self::TopLogits { .. } | Self::TopPages { .. } | Self::TopCodes { .. } => None,
        }
    }
}

impl CodesStage {
    /// Shape of the codes of all KV heads' maps. Returns `None` if there are no kernels for them.
    fn new(score: Score, maps: &[Vec<CodeMap>], shape: Shape, layout: RowLayout) -> Option<Self> {
        let first = maps.first()?.first()?;
        let [key, query] =
            [first.key(), first.query()].map(|network| NetworkShape::from_network(network));
        let codes = Self { score, maps: maps[0].len(), key, query };
        let CodesStage { key, query, maps: count, .. } = &codes;
        let alike = |map: &CodeMap| key.matches(map.key()) && query.matches(map.query());
        let supported = (*count == 1 || *count == shape.group())
            && maps.iter().all(|maps| maps.len() == *count && maps.iter().all(alike))
            && [key, query].iter().all(|network| Encode::<Driver>::check(layout, network).is_ok())
            && u16::try_from(codes.compared(shape.group()) * codes.bits()).is_ok();
        supported.then_some(codes)
    }

    /// Number of bits of a code.
    pub(crate) fn bits(&self) -> usize {
        self.key.outputs()
    }

    /// Number of codes that are compared for one row of scores.
    pub(crate) fn compared(&self, group: usize) -> usize {
        match self.score {
            Score::Group => group,
            Score::Head => 1,
        }
    }

    /// Index of the map whose codes are compared with the query of `member`.
    pub(crate) fn map_of(&self, member: usize) -> usize {
        if self.maps == 1 { 0 } else { member }
    }
}

impl PlannedSample {
    /// Sample of an estimator and a sampler. Returns `None` if one of them has no kernels.
    fn new(estimator: &dyn Estimator, sampler: &dyn SamplerConfig, shape: Shape) -> Option<Self> {
        let &Uniform { base } = (sampler as &dyn Any).downcast_ref()?;
        let budget = ClosedForm::from_estimator(estimator, shape.query_heads, shape.value_dim)?;
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

    /// Returns true if the size follows from an upper bound on the untaken attention weights.
    fn needs_bound(&self) -> bool {
        matches!(&self.budget, ClosedForm::Formula { formula, .. } if formula.needs_bound())
    }
}
