//! Whether a pipeline keeps what its certificates say, on heads of many kinds.
//!
//! A sample breaks its certificate if its error is more than the epsilon that is promised, or where
//! nothing is promised, more than its error bar. Over many samples of a row that may happen to a share
//! delta of them; the count is judged by its exact binomial probability.

use std::sync::Arc;

use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Exp1, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use statrs::function::beta::beta_reg;
use vattention_core::{
    Certificate, Choice, Fraction, Kind, NewTokens, Pipeline, PipelineConfig, Read, Reading, Shape,
    Site, Step, Target, Tokens,
};

/// Tokens of each head.
pub const TOKENS: usize = 3000;

/// Elements of a value.
pub const VALUE_DIM: usize = 8;

/// Samples of each row.
pub const TRIALS: u32 = 2000;

/// A count that is less probable than this, if what certificates say is true, contradicts them.
pub const LEVEL: f64 = 1e-6;

/// How the logits of a head are spread, and its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PromiseHead {
    /// Equal weights.
    Flat,
    /// Logits have a standard deviation of 1/2.
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
    /// As [`Gaussian`](Self::Gaussian), with keys and values multiplied by 1e-12.
    Tiny,
    /// Values that change their sign along the sequence.
    SignChanges(SignChanges),
}

/// Values of 1 in one direction, and of -1 after each second change, plus what gives them a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignChanges {
    /// The first tokens of a changed sign, ascending.
    pub changes: &'static [usize],
    /// The mean of all values.
    pub mean: f64,
    /// The standard deviation of the logits; 0 for scores that are equal.
    pub spread: f64,
}

impl SignChanges {
    fn sign(self, token: usize) -> f64 {
        let changes = self.changes.iter().filter(|&&change| change <= token).count();
        if changes.is_multiple_of(2) { 1.0 } else { -1.0 }
    }

    /// The value of a token in its direction.
    fn value(self, token: usize) -> f64 {
        let sum: f64 = (0..TOKENS).map(|token| self.sign(token)).sum();
        self.sign(token) - sum / TOKENS as f64 + self.mean
    }
}

/// How long the values of a head are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Log-normal with this parameter.
    LogNormal(f64),
    /// With parameter 1.
    Exponential,
    /// Normal, or 0 where that is negative.
    Rectified,
    /// 0 or 1.
    ZeroOrOne,
    /// 1, but for this share of the tokens, whose values are opposite.
    Opposite(f64),
}

/// Every kind of head on which promises are tried.
pub const HEADS: [PromiseHead; 14] = [
    PromiseHead::Flat,
    PromiseHead::Gaussian,
    PromiseHead::Cancelling,
    PromiseHead::LogNormal(1.0),
    PromiseHead::LogNormal(2.0),
    PromiseHead::LogNormal(3.0),
    PromiseHead::Needle,
    PromiseHead::Pareto(1.5),
    PromiseHead::OneDirection(Length::LogNormal(1.0)),
    PromiseHead::OneDirection(Length::LogNormal(1.5)),
    PromiseHead::OneDirection(Length::Exponential),
    PromiseHead::OneDirection(Length::Rectified),
    PromiseHead::OneDirection(Length::ZeroOrOne),
    PromiseHead::Tiny,
];

/// What many samples of a head came to. Counts are of the worse of two query heads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Samples that broke what their certificates say.
    pub violated: usize,
    /// Samples whose error was larger than their error bar.
    pub outside: usize,
    /// Rows that promise nothing.
    pub withheld: usize,
    /// Rows whose last look did not find the sample large enough for the promise.
    pub unheld: usize,
    /// Rows that read everything.
    pub exact: usize,
    /// Tokens read for a row, on average.
    pub read: f64,
    /// The most tokens that were drawn for a row.
    pub most_drawn: usize,
    /// The mean radius of the error bars.
    pub radius: f64,
}

/// One KV head with two query heads, whose logits are independent of each other, read by a pipeline.
#[derive(Debug)]
pub struct PromiseTrials {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    exact: Vec<Exact>,
    pipeline: Pipeline,
    /// What the selectors picked, which does not depend on the sample.
    choice: Choice,
}

/// Exact attention of one row.
#[derive(Clone, Debug)]
struct Exact {
    /// `e` of each token, relative to the largest.
    e: Vec<f64>,
    sums: Sums,
    /// `Σ e |v| / D`.
    mean_norm: f64,
}

/// `Σ e v / p` and `Σ e / p` over some tokens.
#[derive(Clone, Debug, Default)]
struct Sums {
    numerator: [f64; VALUE_DIM],
    denominator: f64,
}

const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 4, value_dim: VALUE_DIM };

/// An error that is larger than an error bar by so little may be rounding.
const ROUNDING: f64 = 1e-6;

/// Tries a pipeline on every kind of head.
///
/// Cost: 56,000 steps over 3,000 tokens, some minutes without optimisation.
///
/// # Panics
/// If the pipeline cannot run, certifies nothing, or breaks what it certifies more often than its
/// delta allows.
pub fn check(config: PipelineConfig) {
    let config = Arc::new(config);
    for_each_head(|kind| {
        let counts = PromiseTrials::new(kind, &config).run();
        let delta = delta(&config);
        assert!(
            !contradicted(counts.violated, delta),
            "{kind:?}: {} of {TRIALS} samples break what is promised with delta {delta}: {counts:?}",
            counts.violated
        );
    });
}

/// Runs a case for each kind of head, on two threads.
pub fn for_each_head(case: impl Fn(PromiseHead) + Sync) {
    std::thread::scope(|scope| {
        for first in [0, 1] {
            let case = &case;
            scope.spawn(move || HEADS.iter().skip(first).step_by(2).for_each(|&kind| case(kind)));
        }
    });
}

/// Whether `violated` of [`TRIALS`] samples contradict a failure rate of delta.
pub fn contradicted(violated: usize, delta: f64) -> bool {
    let trials = TRIALS as usize;
    violated > 0 && beta_reg(violated as f64, (trials - violated + 1) as f64, delta) < LEVEL
}

/// The failure probability that a row is given.
fn delta(config: &PipelineConfig) -> f64 {
    let demand = config.demand().expect("an estimator promises something");
    demand.scope.share_of(demand.delta.get(), SHAPE.query_heads)
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

impl PromiseHead {
    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat | Self::OneDirection(_) => 0.0,
            Self::Gaussian | Self::Cancelling | Self::Tiny => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::SignChanges(SignChanges { spread, .. }) => spread * normal,
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.1 + 0.3 * normal,
            Self::Needle => 0.3 * normal,
            Self::Pareto(index) => {
                Pareto::new(1.0, index).expect("a positive index").sample(rng).ln()
            }
        }
    }

    /// Keys `[TOKENS, 4]` and values `[TOKENS, VALUE_DIM]`.
    fn rows(self) -> (Vec<f32>, Vec<f32>) {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let spread = if self == Self::Cancelling { 0.15 } else { 0.7 };
        let scale = if self == Self::Tiny { 1e-12 } else { 1.0 };
        for token in 0..TOKENS {
            // In two parts, so that no index keeps them exactly.
            let mut logits = [0.0; 2];
            let mut key = [0.0; 4];
            for member in 0..2 {
                let logit = self.logit(token, &mut rng);
                let mut part: f64 = StandardNormal.sample(&mut rng);
                if self.has_equal_scores() {
                    part = 0.0;
                }
                logits[member] = logit;
                key[member] = logit - part;
                key[2 + member] = part;
            }
            keys.extend(key.map(|k| (scale * k) as f32));
            values.extend(self.value(token, spread, logits, &mut rng).map(|v| (scale * v) as f32));
        }
        (keys, values)
    }

    /// Whether scores are equal even after rounding, so that tokens are ranked by position.
    fn has_equal_scores(self) -> bool {
        matches!(self, Self::SignChanges(SignChanges { spread: 0.0, .. }))
    }

    fn value(
        self,
        token: usize,
        spread: f64,
        logits: [f64; 2],
        rng: &mut ChaCha8Rng,
    ) -> [f64; VALUE_DIM] {
        let mut value = [0.0; VALUE_DIM];
        if let Self::OneDirection(length) = self {
            value[0] = length.of(token, rng);
            return value;
        }
        if let Self::SignChanges(changes) = self {
            value[0] = changes.value(token);
            return value;
        }
        for (j, x) in value.iter_mut().enumerate() {
            let noise: f64 = StandardNormal.sample(rng);
            *x = spread * f64::from(j as u8 % 3) - 4.0 / 7.0 * spread + 0.5 * noise;
        }
        // What weighs more is different, as in life.
        for (x, logit) in value.iter_mut().zip(logits) {
            *x += logit.clamp(-3.0, 3.0);
        }
        value
    }

    /// What queries are multiplied by, so that logits are as they are said to be.
    fn query(self) -> f32 {
        if self == Self::Tiny { 1e12 } else { 1.0 }
    }
}

impl PromiseTrials {
    /// A head of that kind, of which the pipeline has seen all tokens.
    ///
    /// # Panics
    /// If the pipeline cannot run.
    pub fn new(kind: PromiseHead, config: &Arc<PipelineConfig>) -> Self {
        let (keys, values) = kind.rows();
        let query = kind.query();
        let queries = vec![query, 0.0, query, 0.0, 0.0, query, 0.0, query];
        let site = Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape: SHAPE };
        let mut pipeline = Pipeline::new(config, site).expect("the pipeline can run");
        let rows = [Tokens::new(&keys, TOKENS, 4), Tokens::new(&values, TOKENS, VALUE_DIM)];
        pipeline.append(&NewTokens { first: 0, keys: rows[0], values: rows[1], classes: None });
        let step = Step {
            site: &site,
            queries: &queries,
            keys: rows[0],
            values: rows[1],
            visible: TOKENS,
            step: 0,
        };
        let choice = pipeline.choose(&step);
        let exact = (0..2).map(|member| Exact::new(&step, &values, member)).collect();
        Self { queries, keys, values, exact, pipeline, choice }
    }

    /// Reads as `sequence`, and shows what was read.
    pub fn read<T>(&self, sequence: u32, show: impl FnOnce(&Step<'_>, &Reading) -> T) -> T {
        self.read_by(&mut self.pipeline.clone(), sequence, show)
    }

    fn read_by<T>(
        &self,
        pipeline: &mut Pipeline,
        sequence: u32,
        show: impl FnOnce(&Step<'_>, &Reading) -> T,
    ) -> T {
        pipeline.set_sequence(sequence);
        let step = Step {
            site: pipeline.site(),
            queries: &self.queries,
            keys: Tokens::new(&self.keys, TOKENS, 4),
            values: Tokens::new(&self.values, TOKENS, VALUE_DIM),
            visible: TOKENS,
            step: 0,
        };
        show(&step, &pipeline.complete(&step, &self.choice))
    }

    /// Draws [`TRIALS`] samples.
    ///
    /// # Panics
    /// If a row certifies nothing.
    pub fn run(&self) -> Counts {
        let (mut violated, mut outside, mut found) = ([0; 2], [0; 2], Counts::default());
        let mut pipeline = self.pipeline.clone();
        for sequence in 0..TRIALS {
            self.read_by(&mut pipeline, sequence, |_, reading| {
                for (member, exact) in self.exact.iter().enumerate() {
                    let report = reading.report(member);
                    let certificate = report.certificate;
                    let (error, allowed) =
                        (exact.error(&self.values, reading, member), allowed(&certificate));
                    violated[member] += usize::from(error > allowed);
                    let radius = certificate.bar.map_or(f64::INFINITY, |bar| bar.radius);
                    outside[member] += usize::from(error > radius + ROUNDING);
                    found.radius += radius / f64::from(2 * TRIALS);
                    found.read += (report.certain + report.sampled) as f64 / f64::from(2 * TRIALS);
                    found.most_drawn = found.most_drawn.max(report.sampled);
                    found.withheld += usize::from(certificate.promise.is_none());
                    found.unheld += usize::from(!certificate.held);
                    found.exact += usize::from(certificate.kind == Kind::Exact);
                }
            });
        }
        let [violated, outside] = [violated, outside].map(|of| of[0].max(of[1]));
        Counts { violated, outside, ..found }
    }
}

/// The error that a certificate says is exceeded with probability delta at most.
fn allowed(certificate: &Certificate) -> f64 {
    match (certificate.promise, certificate.bar) {
        (Some(promise), _) => promise.epsilon.get(),
        (None, Some(bar)) => bar.radius + ROUNDING,
        (None, None) => panic!("nothing is certified: {certificate:?}"),
    }
}

impl Exact {
    /// Attention of a member of the group, of values `[TOKENS, VALUE_DIM]`.
    fn new(step: &Step<'_>, values: &[f32], member: usize) -> Self {
        let row = step.row(member);
        let logits: Vec<f64> = (0..TOKENS).map(|token| f64::from(row.logit(token))).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let (mut sums, mut norms) = (Sums::default(), 0.0);
        for (value, &e) in values.chunks_exact(VALUE_DIM).zip(&e) {
            sums.add(e, value);
            norms += e * length(value.iter().map(|&v| f64::from(v)));
        }
        Self { e, mean_norm: norms / sums.denominator, sums }
    }

    /// How far a reading is off in what is promised.
    fn error(&self, values: &[f32], reading: &Reading, member: usize) -> f64 {
        let found = self.sums_of(values, reading.of(member));
        let certificate = reading.report(member).certificate;
        let bar = certificate.bar.map(|bar| (bar.target, bar.floor));
        let promise = certificate.promise.map(|promise| (promise.target, promise.floor));
        let (target, floor) = promise.or(bar).unwrap_or((Target::Sdpa, None));
        let share = found.denominator / self.sums.denominator;
        let scale = match target {
            Target::Denominator => return (share - 1.0).abs(),
            Target::Numerator => share,
            Target::Sdpa => 1.0,
        };
        let (got, want) = (found.output(), self.sums.output());
        let apart = got.iter().zip(want).map(|(got, want)| got * scale - want);
        let floor = floor.map_or(0.0, Fraction::get) * self.mean_norm;
        length(apart) / length(want.into_iter()).max(floor)
    }

    /// What the tokens of a list come to.
    fn sums_of(&self, values: &[f32], read: &Read) -> Sums {
        let mut sums = Sums::default();
        for (token, p) in read.entries() {
            let token = token as usize;
            let value = &values[token * VALUE_DIM..][..VALUE_DIM];
            sums.add(self.e[token] / f64::from(p), value);
        }
        sums
    }
}

impl Sums {
    fn add(&mut self, e: f64, value: &[f32]) {
        self.denominator += e;
        self.numerator.iter_mut().zip(value).for_each(|(sum, &v)| *sum += e * f64::from(v));
    }

    fn output(&self) -> [f64; VALUE_DIM] {
        self.numerator.map(|sum| sum / self.denominator)
    }
}

fn length(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}
