//! Heads of many kinds, selectors that draw for a promise on them, and how often it breaks.

use std::sync::Arc;

use ndarray::{Array3, ArrayView1};
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Exp1, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use vattention::estimators::Mode;
use vattention::eval::{Exact, Layer, binomial};
use vattention::selectors::{Promised, Sink, Window};
use vattention::{
    Fraction, Kind, NewTokens, Pipeline, PipelineConfig, Promise, Reading, SelectorConfig, Share,
    Site, Size, Softmax, Step, Tokens,
};

pub(crate) const TOKENS: usize = 3000;
pub(crate) const TRIALS: u32 = 2000;
pub(crate) const BASE: usize = 64;
pub(crate) const LEVEL: f64 = 1e-6;
pub(crate) const VALUE_DIM: usize = 8;

/// How the logits of a head are spread, and whether its values cancel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Head {
    Flat,
    /// Standard deviation 1/2.
    Gaussian,
    /// The same, with values of mean 0.
    Cancelling,
    /// Weights are log-normal with this parameter.
    LogNormal(f64),
    /// Eight tokens hold half of the attention.
    Needle,
    /// Weights are Pareto with this index.
    Pareto(f64),
    /// Equal weights, and values in one direction of such lengths.
    OneDirection(Length),
}

/// How long the values of a head are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// Log-normal with this parameter.
    LogNormal(f64),
    Exponential,
    /// Normal, or 0 where that is negative.
    Rectified,
    /// 0 or 1.
    ZeroOrOne,
    /// 1, but for this share of the tokens, whose values are opposite.
    Opposite(f64),
}

impl Length {
    fn of(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::LogNormal(sigma) => (sigma * normal).exp(),
            Self::Exponential => Exp1.sample(rng),
            Self::Rectified => normal.max(0.0),
            Self::ZeroOrOne => f64::from(u8::from(normal > 0.0)),
            Self::Opposite(share) if token * 7919 % TOKENS < (share * TOKENS as f64) as usize => {
                -1.0
            }
            Self::Opposite(_) => 1.0,
        }
    }
}

pub(crate) const HEADS: [Head; 13] = [
    Head::Flat,
    Head::Gaussian,
    Head::Cancelling,
    Head::LogNormal(1.0),
    Head::LogNormal(2.0),
    Head::LogNormal(3.0),
    Head::Needle,
    Head::Pareto(1.5),
    Head::OneDirection(Length::LogNormal(1.0)),
    Head::OneDirection(Length::LogNormal(1.5)),
    Head::OneDirection(Length::Exponential),
    Head::OneDirection(Length::Rectified),
    Head::OneDirection(Length::ZeroOrOne),
];

impl Head {
    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat | Self::OneDirection(_) => 0.0,
            Self::Gaussian | Self::Cancelling => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.1 + 0.3 * normal,
            Self::Needle => 0.3 * normal,
            Self::Pareto(index) => Pareto::new(1.0, index).unwrap().sample(rng).ln(),
        }
    }

    /// One KV head with two query heads, whose logits are independent of each other.
    pub(crate) fn layer(self) -> Layer {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut keys = Array3::zeros((1, TOKENS, 4));
        let mut values = Array3::zeros((1, TOKENS, VALUE_DIM));
        let spread = if self == Self::Cancelling { 0.15 } else { 0.7 };
        for token in 0..TOKENS {
            let mut logits = [0.0; 2];
            for member in 0..2 {
                // In two parts, so that neither is kept exactly.
                let logit = self.logit(token, &mut rng);
                let part: f64 = StandardNormal.sample(&mut rng);
                logits[member] = logit;
                keys[[0, token, member]] = (logit - part) as f32;
                keys[[0, token, 2 + member]] = part as f32;
            }
            if let Self::OneDirection(length) = self {
                values[[0, token, 0]] = length.of(token, &mut rng) as f32;
                continue;
            }
            for j in 0..VALUE_DIM {
                let noise: f64 = StandardNormal.sample(&mut rng);
                let mean = spread * f64::from(j as u8 % 3) - 4.0 / 7.0 * spread;
                values[[0, token, j]] = (mean + 0.5 * noise) as f32;
            }
            // What weighs more is different, as in life.
            for (member, logit) in logits.into_iter().enumerate() {
                values[[0, token, member]] += logit.clamp(-3.0, 3.0) as f32;
            }
        }
        let queries =
            Array3::from_shape_fn((2, 1, 4), |(head, _, i)| f32::from(u8::from(i % 2 == head)));
        Layer { queries, keys, values, visible: None, prompt: None, prompt_tokens: None }
    }
}

pub(crate) fn fraction(x: f64) -> Fraction {
    x.try_into().unwrap()
}

pub(crate) fn promised(mode: Mode, epsilon: f64, delta: f64) -> Promised {
    let base = Size::Tokens(BASE);
    Promised { mode, base, ..Promised::new(fraction(epsilon), fraction(delta)) }
}

/// What many samples of a head came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trials {
    /// Of the worse query head.
    pub(crate) broken: usize,
    /// Tokens drawn or taken by the sampler, on average.
    pub(crate) sampled: f64,
    /// Samples that the last look did not find large enough.
    pub(crate) unheld: usize,
    /// Rows that read everything.
    pub(crate) exact: usize,
}

/// One head, ready to be read.
pub(crate) struct Bench {
    layer: Layer,
    exact: Vec<Exact>,
    pipeline: Pipeline,
}

impl Bench {
    /// A few sinks, a window, and what follows, each query head for itself.
    pub(crate) fn new(head: Head, mut config: PipelineConfig) -> Self {
        let layer = head.layer();
        let shape = layer.shape();
        let size = Size::Tokens(8);
        let ends: [Box<dyn SelectorConfig>; 2] =
            [Box::new(Sink { size }), Box::new(Window { size })];
        config.selectors.splice(0..0, ends);
        config.share = Share::Head;
        let config = Arc::new(config);
        let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape };
        let mut bench = Self {
            exact: Exact::rows(&layer, &shape, 1.0, 1),
            pipeline: Pipeline::new(&config, site).unwrap(),
            layer,
        };
        let [keys, values] = tokens(&bench.layer);
        bench.pipeline.append(&NewTokens { first: 0, keys, values });
        bench
    }

    /// Reads as `sequence`, and shows what was read.
    pub(crate) fn read<T>(
        &self,
        sequence: u32,
        mut show: impl FnMut(&Step<'_>, &Reading) -> T,
    ) -> T {
        let mut pipeline = self.pipeline.clone();
        pipeline.set_sequence(sequence);
        let [keys, values] = tokens(&self.layer);
        let queries = self.layer.queries.as_slice().unwrap();
        let step = Step { site: pipeline.site(), queries, keys, values, visible: TOKENS, step: 0 };
        show(&step, &pipeline.read(&step))
    }

    pub(crate) fn run(&self, promise: &Promise) -> Trials {
        let (mut broken, mut found) = ([0; 2], Trials::default());
        for sequence in 0..TRIALS {
            self.read(sequence, |step, reading| {
                for (member, exact) in self.exact.iter().enumerate() {
                    let report = reading.report(member);
                    broken[member] += usize::from(!is_kept(step, reading, member, exact, promise));
                    found.sampled += (report.certain + report.sampled - 16) as f64;
                    found.unheld += usize::from(!report.certificate.held);
                    found.exact += usize::from(report.certificate.kind == Kind::Exact);
                    assert_eq!(report.certificate.promise, Some(*promise));
                }
            });
        }
        found.sampled /= f64::from(2 * TRIALS);
        Trials { broken: broken[0].max(broken[1]), ..found }
    }
}

pub(crate) fn tokens(layer: &Layer) -> [Tokens<'_>; 2] {
    [&layer.keys, &layer.values].map(|numbers| {
        let (_, len, dim) = numbers.dim();
        Tokens::new(numbers.as_slice().unwrap(), len, dim)
    })
}

pub(crate) fn is_kept(
    step: &Step<'_>,
    reading: &Reading,
    member: usize,
    exact: &Exact,
    promise: &Promise,
) -> bool {
    let (row, list) = (step.row(member), reading.list(member));
    let mut sums = Softmax::new(VALUE_DIM);
    let mut value = [0.0; VALUE_DIM];
    for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
        step.values.copy_row(token as usize, &mut value);
        sums.add(f64::from(row.logit(token as usize)), 1.0 / f64::from(p), &value);
    }
    let output = sums.output();
    let error = &ArrayView1::from(&output) - &exact.output;
    error.dot(&error) <= promise.epsilon.get().powi(2) * exact.output.dot(&exact.output)
}

pub(crate) fn contradicted(found: &Trials, delta: f64) -> bool {
    binomial::p_value(found.broken, TRIALS as usize, delta) < LEVEL
}

/// A pipeline of selectors alone.
pub(crate) fn only(selectors: Vec<Box<dyn SelectorConfig>>) -> PipelineConfig {
    PipelineConfig { selectors, ..PipelineConfig::default() }
}

/// Runs a case for each head, in parallel.
pub(crate) fn for_each_head(case: impl Fn(Head) + Sync) {
    let (even, odd): (Vec<_>, Vec<_>) = HEADS.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    std::thread::scope(|scope| {
        for heads in [even, odd] {
            let case = &case;
            scope.spawn(move || heads.into_iter().for_each(|(_, &head)| case(head)));
        }
    });
}
