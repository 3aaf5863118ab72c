//! Tests of a pipeline's certificates on heads of many kinds.
//!
//! A sample violates its certificate if its error exceeds the promised epsilon or, without a
//! promise, its error bar. Of many samples for a query head, a fraction of at most delta may do so;
//! the number of violations is tested by its exact binomial probability.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Exp1, Open01, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use statrs::function::beta::beta_reg;
use vattention_core::ndarray::ArrayView3;
use vattention_core::{
    Certificate, Kind, NewTokens, Pipeline, PipelineConfig, Row, RowReport, Site, Step, Target,
    TokenClass,
    pipeline::{Choice, List, Read, Reading},
    plugin::{AttentionWeights, PromptQueries},
    promise::{Assumption, Assumptions},
    step::Softmax,
};

use crate::adversarial::AdversarialHead;
pub use crate::head_data::{HeadData, VALUE_DIM};
use crate::head_form::{HeadForm, logits};
use crate::verdict::{Verdict, ensure};

/// Number of tokens of each head.
pub const TOKENS: usize = 3000;

/// Number of samples for each query head.
pub const TRIALS: u32 = 2000;

/// Significance level: a count contradicts the certificates if its probability is below this value,
/// assuming that they hold.
pub const LEVEL: f64 = 1e-6;

/// Distribution of the logits and values of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PromiseHead {
    /// Equal weights.
    Flat,
    /// Logits have a standard deviation of 1/2.
    Gaussian,
    /// Logits have a standard deviation of 1/2, and values have mean 0.
    Cancelling,
    /// Weights are log-normal with this parameter.
    LogNormal(f64),
    /// Eight tokens hold half of the attention.
    Needle,
    /// Weights are Pareto with this index.
    Pareto(f64),
    /// Equal weights, and values in one direction with these lengths.
    OneDirection(Length),
    /// Same as [`Gaussian`](Self::Gaussian), with keys and values multiplied by 1e-12.
    Tiny,
    /// Logits have a standard deviation of 1, and values are Gaussian with mean 0.
    Balanced,
    /// Logits have a standard deviation of 1, and values are 1 or −1 in one direction, with this
    /// mean.
    Signs(f64),
    /// Values change their sign along the sequence.
    SignChanges(SignChanges),
    /// 6 % of the tokens have equal logits and hold half of the attention; the last of these tokens
    /// have different values.
    TwoPoint,
    /// A population of heads that is designed to break a promise.
    Adversary(AdversarialHead),
    /// Another kind of head, with a soft cap or attention sinks.
    Formed(&'static PromiseHead, HeadForm),
}

/// Values in one direction: 1, with the opposite sign after each change, plus a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignChanges {
    /// First token of each changed sign, ascending.
    pub changes: &'static [usize],
    /// Mean of all values.
    pub mean: f64,
    /// Standard deviation of the logits; 0 makes all scores equal.
    pub spread: f64,
}

impl SignChanges {
    fn sign(self, token: usize) -> f64 {
        let changes = self.changes.iter().filter(|&&change| change <= token).count();
        if changes.is_multiple_of(2) { 1.0 } else { -1.0 }
    }

    /// Value of a token in its direction.
    fn value(self, token: usize) -> f64 {
        let sum: f64 = (0..TOKENS).map(|token| self.sign(token)).sum();
        self.sign(token) - sum / TOKENS as f64 + self.mean
    }
}

/// Distribution of the lengths of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Log-normal with this parameter.
    LogNormal(f64),
    /// Exponential with parameter 1.
    Exponential,
    /// Standard normal, with negative lengths replaced by 0.
    Rectified,
    /// 0 or 1 with equal probability.
    ZeroOrOne,
    /// 1, except for this share of the tokens, whose values are −1.
    Opposite(f64),
}

/// All kinds of heads on which promises are tested.
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

/// Heads whose values cancel nearly or completely, so that an estimate of the output may be mostly
/// noise.
pub const CANCELLING: [PromiseHead; 5] = [
    PromiseHead::Balanced,
    PromiseHead::Signs(0.02),
    PromiseHead::Signs(0.05),
    PromiseHead::Signs(0.1),
    PromiseHead::Signs(0.2),
];

/// Number of samples in which an event occurred, for the query head with the most events.
///
/// A population has several KV heads; the query heads of a KV head are counted separately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventCount {
    /// Number of events in the samples of all KV heads of a population.
    pub total: usize,
    /// Number of samples of all KV heads of a population.
    pub trials: usize,
    /// Number of events in the samples of the KV head with the most events.
    pub worst: usize,
    /// Number of samples of each KV head of a population.
    pub trials_of_head: usize,
}

impl EventCount {
    /// Returns true if the number of events of all heads, or of the worst head, contradicts a
    /// failure rate of delta.
    pub fn contradicts(&self, delta: f64) -> bool {
        exceeds_rate(self.total, self.trials, delta)
            || exceeds_rate(self.worst, self.trials_of_head, delta)
    }

    fn new(heads: &[Vec<RowCounts>], trials_of_head: u32, count: fn(&RowCounts) -> usize) -> Self {
        let counts = |row: usize| heads.iter().map(move |head| count(&head[row]));
        let rows = 0..heads[0].len();
        Self {
            total: rows.clone().map(|row| counts(row).sum()).max().unwrap_or_default(),
            trials: heads.len() * trials_of_head as usize,
            worst: rows.flat_map(counts).max().unwrap_or_default(),
            trials_of_head: trials_of_head as usize,
        }
    }
}

/// Results of many samples of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// Samples that violated their certificates.
    pub violated: EventCount,
    /// Samples that violated their certificates although the head satisfies all their assumptions.
    pub unfounded: EventCount,
    /// Samples whose error exceeded their error bar.
    pub outside: EventCount,
    /// Samples whose error exceeded the fraction [`narrowing`](PromiseTrials::narrowing) of the
    /// error that their certificates allow.
    pub narrowed: EventCount,
    /// Number of rows whose promise is held, and whose certificate makes only assumptions that the
    /// head satisfies. A row is one sample of one query head.
    pub founded: usize,
    /// Number of rows without a promise.
    pub withheld: usize,
    /// Number of rows whose sample was too small for the promise at the last check.
    pub unheld: usize,
    /// Number of rows whose promise is held although the error bar is larger than epsilon.
    pub loose: usize,
    /// Number of rows that read all tokens.
    pub exact: usize,
    /// Number of rows of all samples.
    pub rows: usize,
    /// Mean number of tokens read for a row.
    pub read: f64,
    /// Mean number of tokens drawn for a row.
    pub drawn: f64,
    /// Largest number of tokens drawn for a row.
    pub most_drawn: usize,
    /// Mean radius of the error bars.
    pub radius: f64,
    /// Weakest kind of the certificates.
    pub kind: Kind,
    /// Assumptions of any of the certificates.
    pub assumes: Assumptions,
}

/// Counts of one query head.
#[derive(Clone, Copy, Debug, Default)]
struct RowCounts {
    violated: usize,
    unfounded: usize,
    outside: usize,
    narrowed: usize,
}

/// One KV head, and a pipeline that draws samples from it.
#[derive(Debug)]
pub struct PromiseTrials {
    head: HeadData,
    exact: Vec<ExactAttention>,
    pipeline: Pipeline,
    /// Picks of the selectors, which do not depend on the sample.
    choice: Choice,
    /// True if the selectors miss tokens that are much heavier than those that a sample draws.
    pub tail_is_hidden: bool,
    /// Fraction of the allowed error, for the count [`narrowed`](Counts::narrowed).
    pub narrowing: f64,
    /// True if trials are successive steps, so that a sample begins with the size that the previous
    /// one needed.
    pub successive: bool,
}

/// Exact attention of one query head.
#[derive(Clone, Debug)]
struct ExactAttention {
    /// `e` of each token, relative to the largest.
    e: Vec<f64>,
    /// `e` of the attention sink; 0 without a sink.
    sink: f64,
    sums: OutputSums,
}

/// Sums `Σ e v / p` and `Σ e / p` over tokens.
#[derive(Clone, Debug)]
struct OutputSums {
    numerator: [f64; VALUE_DIM],
    denominator: f64,
}

/// Number of query heads of a [`PromiseHead`], whose logits are independent of each other.
const GROUP: usize = 2;

/// Largest excess of an error over an error bar that may be a rounding error.
const ROUNDING: f64 = 1e-6;

/// Tests a pipeline on every kind of head.
///
/// Cost: 56,000 steps over 3,000 tokens, some minutes without optimization.
///
/// # Panics
/// If the pipeline cannot run, certifies nothing, or does not [keep its promise](keeps_promise).
pub fn check(config: PipelineConfig) {
    if let Err(broken) = keeps_promise(&Arc::new(config)) {
        panic!("{broken}");
    }
}

/// Tests a pipeline on every kind of head. Cost: that of [`check`].
///
/// # Errors
/// Every kind of head on which the pipeline violates its certificates more often than delta allows,
/// with the assumption that the head violates, if any. Also if no sample was drawn on any kind of
/// head, because nothing was tested then.
///
/// # Panics
/// If the pipeline cannot run or certifies nothing.
pub fn keeps_promise(config: &Arc<PipelineConfig>) -> Verdict {
    let (drawn, broken) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    for_each(&HEADS, |&kind| {
        let counts = try_head(kind, config);
        drawn.fetch_max(counts.most_drawn, Ordering::Relaxed);
        let delta = delta(config);
        if counts.violated.contradicts(delta) {
            let mut broken = broken.lock().expect("no case panics while it holds the lock");
            broken.push(explain(kind, delta, &counts));
        }
    });
    let mut broken = broken.into_inner().expect("no case panics while it holds the lock");
    broken.sort_unstable();
    ensure(broken.is_empty(), || broken.join("\n"))?;
    ensure(drawn.into_inner() > 0, || {
        format!(
            "no sample was drawn on any of the {} kinds of heads: all {TOKENS} tokens were read \
             deterministically, so no promise was tested; use selectors and an estimator that do \
             not read all tokens",
            HEADS.len()
        )
    })
}

/// Message about a broken promise.
fn explain(kind: PromiseHead, delta: f64, counts: &Counts) -> String {
    let violated = counts.violated.total;
    let what =
        format!("{kind:?}: {violated} of {TRIALS} samples break a promise with delta {delta}");
    let why = match kind.hazard() {
        Some((assumption, reason)) if counts.assumes.contains(assumption) => format!(
            "the certificates assume `{assumption}` ({}), and this kind of head violates this \
             assumption: {reason}",
            assumption.sentence()
        ),
        _ => format!(
            "the certificates assume {}, and this kind of head violates no assumption: the bound \
             of the estimator, or the probabilities of the sampler, are wrong",
            counts.assumes
        ),
    };
    format!("{what}; {why} ({counts:?})")
}

/// Calls `case` for each item, on two threads.
pub fn for_each<T: Sync>(items: &[T], case: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            case(item);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

/// Returns true if a number of events in a number of trials contradicts a rate: if at least this
/// number of events has a probability below [`LEVEL`].
pub fn exceeds_rate(events: usize, trials: usize, rate: f64) -> bool {
    events > 0 && beta_reg(events as f64, (trials - events + 1) as f64, rate) < LEVEL
}

/// Draws [`TRIALS`] samples of a head, or of all heads of a population in total.
///
/// # Panics
/// If the pipeline cannot run, or certifies nothing.
pub fn try_head(kind: PromiseHead, config: &Arc<PipelineConfig>) -> Counts {
    try_head_as(kind, config, |_| {})
}

/// Draws samples like [`try_head`]. `set` changes the settings of the trials.
///
/// # Panics
/// If the pipeline cannot run, or certifies nothing.
pub fn try_head_as(
    kind: PromiseHead,
    config: &Arc<PipelineConfig>,
    set: impl Fn(&mut PromiseTrials),
) -> Counts {
    let seeds = kind.seeds();
    let trials = TRIALS / seeds.end.abs_diff(seeds.start);
    let mut counts = Counts::none();
    let mut heads = Vec::new();
    for seed in seeds {
        let mut head = PromiseTrials::with_data(kind.data(seed), config, seed.into());
        set(&mut head);
        heads.push(head.run(trials, &mut counts));
    }
    let count = |count| EventCount::new(&heads, trials, count);
    counts.violated = count(|row| row.violated);
    counts.unfounded = count(|row| row.unfounded);
    counts.outside = count(|row| row.outside);
    counts.narrowed = count(|row| row.narrowed);
    let rows = counts.rows as f64;
    Counts {
        read: counts.read / rows,
        drawn: counts.drawn / rows,
        radius: counts.radius / rows,
        ..counts
    }
}

/// Allowed failure probability of one query head.
fn delta(config: &PipelineConfig) -> f64 {
    let goal = config.goal().expect("an estimator promises something");
    goal.scope.row_delta(goal.delta.get(), GROUP)
}

impl Length {
    /// Draws the length of a token's value.
    fn draw(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
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
    /// Assumption that this kind of head violates unless selectors prevent it, and the reason.
    fn hazard(self) -> Option<(Assumption, &'static str)> {
        match self {
            Self::Formed(head, _) => head.hazard(),
            Self::Needle => Some((
                Assumption::TailSeen,
                "eight tokens hold half of the attention, and a sample that misses them does not \
                 show it; add a selector that finds heavy tokens (`oracle-top-k`), or draw by a \
                 sampler that does (`priority`)",
            )),
            Self::LogNormal(_) | Self::Pareto(_) | Self::TwoPoint => Some((
                Assumption::TailSeen,
                "few tokens hold most of the attention, and a sample that misses them does not \
                 show it; add a selector that finds heavy tokens (`oracle-top-k`), or draw by a \
                 sampler that does (`priority`)",
            )),
            Self::OneDirection(_) => Some((
                Assumption::Normal,
                "few values are much longer than the others, so sums over a sample are skewed; \
                 raise variances by an allowance, or draw by a sampler that knows values \
                 (`priority`)",
            )),
            Self::Flat | Self::Gaussian | Self::Cancelling | Self::Tiny | Self::Adversary(_) => {
                None
            }
            Self::Balanced | Self::Signs(_) | Self::SignChanges(_) => Some((
                Assumption::Moments,
                "values cancel, so the norm of the output is estimated badly; use \
                 `mode = \"rigorous\"`",
            )),
        }
    }

    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat | Self::OneDirection(_) => 0.0,
            Self::Gaussian | Self::Cancelling | Self::Tiny => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::Balanced | Self::Signs(_) => normal,
            Self::SignChanges(SignChanges { spread, .. }) => spread * normal,
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.1 + 0.3 * normal,
            Self::TwoPoint if token % 50 < 3 => 2.8,
            Self::Needle | Self::TwoPoint => 0.3 * normal,
            Self::Adversary(_) | Self::Formed(..) => {
                unreachable!("these heads have logits of their own")
            }
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
            // Each logit is the sum of two products, so that no index stores it exactly.
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

    /// Returns true if scores are equal even after rounding, so that tokens are ranked by position.
    fn has_equal_scores(self) -> bool {
        matches!(self, Self::SignChanges(SignChanges { spread: 0.0, .. }) | Self::TwoPoint)
    }

    fn value(
        self,
        token: usize,
        spread: f64,
        logits: [f64; 2],
        rng: &mut ChaCha8Rng,
    ) -> [f64; VALUE_DIM] {
        let mut value = [0.0; VALUE_DIM];
        match self {
            Self::OneDirection(length) => {
                value[0] = length.draw(token, rng);
                return value;
            }
            Self::Balanced => return value.map(|_| StandardNormal.sample(rng)),
            Self::Signs(mean) => {
                let uniform: f64 = Open01.sample(rng);
                value[0] = if uniform < f64::midpoint(1.0, mean) { 1.0 } else { -1.0 };
                return value;
            }
            Self::SignChanges(changes) => {
                value[0] = changes.value(token);
                return value;
            }
            Self::TwoPoint if token % 50 < 3 && token > TOKENS * 5 / 6 => {
                return value.map(|_| {
                    let noise: f64 = StandardNormal.sample(rng);
                    3.0 + 0.5 * noise
                });
            }
            _ => {}
        }
        for (j, x) in value.iter_mut().enumerate() {
            let noise: f64 = StandardNormal.sample(rng);
            *x = spread * f64::from(j as u8 % 3) - 4.0 / 7.0 * spread + 0.5 * noise;
        }
        // Values of heavy tokens differ from the others, as in language models.
        for (x, logit) in value.iter_mut().zip(logits) {
            *x += logit.clamp(-3.0, 3.0);
        }
        value
    }

    /// Factor of the queries that compensates for the scale of the keys.
    fn query(self) -> f32 {
        if self == Self::Tiny { 1e12 } else { 1.0 }
    }

    /// Seeds of the heads of a kind on which promises are tested.
    fn seeds(self) -> Range<u32> {
        match self {
            Self::Adversary(_) => 0..8,
            Self::Formed(head, _) => head.seeds(),
            _ => 1..2,
        }
    }

    /// Generates a head with two query heads, 4 elements and [`TOKENS`] tokens, or the head of an
    /// adversary's population with this seed.
    pub fn data(self, seed: u32) -> HeadData {
        match self {
            Self::Adversary(head) => return AdversarialHead { seed: seed.into(), ..head }.data(),
            Self::Formed(head, form) => return form.apply(head.data(seed)),
            _ => {}
        }
        let (keys, values) = self.rows();
        let query = self.query();
        let queries = vec![query, 0.0, query, 0.0, 0.0, query, 0.0, query];
        HeadData {
            group: GROUP,
            head_dim: 4,
            queries,
            keys,
            values,
            soft_cap: None,
            sink_logits: None,
        }
    }
}

impl PromiseTrials {
    /// Builds the pipeline with this seed, and makes it index the head's tokens. The selectors also
    /// observe a prompt and get feedback for one step, so that selectors that learn have learned.
    ///
    /// # Panics
    /// If the pipeline cannot run.
    pub fn with_data(head: HeadData, config: &Arc<PipelineConfig>, seed: u64) -> Self {
        let site = Site { seed, sequence: 0, layer: 0, kv_head: 0, shape: head.shape() };
        let mut pipeline = Pipeline::new(config, site).expect("the pipeline can run");
        let step = head.step(&site);
        let (keys, values) = (step.keys, step.values);
        let classes: Vec<TokenClass> = (0..head.tokens()).map(class).collect();
        let new = NewTokens { first: 0, keys, values, classes: Some(&classes) };
        pipeline.append(&new).expect("the tokens fit");
        teach(&mut pipeline, &head);
        let choice = pipeline.choose(&step);
        let exact = (0..head.group).map(|member| ExactAttention::new(&head, member)).collect();
        let (tail_is_hidden, narrowing, successive) = (false, 1.0, false);
        Self { head, exact, pipeline, choice, tail_is_hidden, narrowing, successive }
    }

    /// Runs a step with the sequence number `sequence`, and calls `f` with the step and its
    /// reading.
    pub fn read<T>(&self, sequence: u32, f: impl FnOnce(&Step<'_>, &Reading) -> T) -> T {
        self.read_with(&mut self.pipeline.clone(), sequence, f)
    }

    fn read_with<T>(
        &self,
        pipeline: &mut Pipeline,
        sequence: u32,
        f: impl FnOnce(&Step<'_>, &Reading) -> T,
    ) -> T {
        pipeline.set_sequence(sequence);
        let number = if self.successive { sequence } else { 0 };
        let step = Step { step: number, ..self.head.step(pipeline.site()) };
        f(&step, &pipeline.complete(&step, &self.choice))
    }

    /// Draws `trials` samples, and returns the counts of each query head.
    fn run(&self, trials: u32, counts: &mut Counts) -> Vec<RowCounts> {
        let mut rows = vec![RowCounts::default(); self.head.group];
        let mut pipeline = self.pipeline.clone();
        for sequence in 0..trials {
            self.read_with(&mut pipeline, sequence, |_, reading| {
                for (member, row) in rows.iter_mut().enumerate() {
                    let error = self.exact[member].error(&self.head.values, reading, member);
                    self.count(error, &reading.report(member), row, counts);
                }
            });
        }
        rows
    }

    fn count(&self, error: f64, report: &RowReport, row: &mut RowCounts, counts: &mut Counts) {
        let certificate = report.certificate;
        let radius = certificate.bar.map_or(f64::INFINITY, |bar| bar.radius);
        let violated = exceeds(error, allowed(&certificate));
        let hidden = self.tail_is_hidden && certificate.assumes.contains(Assumption::TailSeen);
        let founded = certificate.held && !hidden;
        row.violated += usize::from(violated);
        row.unfounded += usize::from(violated && founded);
        row.outside += usize::from(exceeds(error, radius + ROUNDING));
        row.narrowed += usize::from(exceeds(error, self.narrowing * allowed(&certificate)));
        counts.founded += usize::from(founded);
        counts.withheld += usize::from(certificate.promise.is_none());
        counts.unheld += usize::from(!certificate.held);
        let epsilon = certificate.promise.map_or(f64::INFINITY, |promise| promise.epsilon.get());
        counts.loose += usize::from(certificate.held && radius > epsilon * (1.0 + ROUNDING));
        counts.exact += usize::from(certificate.kind == Kind::Exact);
        counts.rows += 1;
        counts.read += (report.certain + report.sampled) as f64;
        counts.drawn += report.sampled as f64;
        counts.most_drawn = counts.most_drawn.max(report.sampled);
        counts.radius += radius;
        counts.kind = counts.kind.min(certificate.kind);
        counts.assumes = counts.assumes | certificate.assumes;
    }
}

impl Counts {
    /// Counts of no samples.
    fn none() -> Self {
        let none = EventCount::default();
        Self {
            violated: none,
            unfounded: none,
            outside: none,
            narrowed: none,
            founded: 0,
            withheld: 0,
            unheld: 0,
            loose: 0,
            exact: 0,
            rows: 0,
            read: 0.0,
            drawn: 0.0,
            most_drawn: 0,
            radius: 0.0,
            kind: Kind::Exact,
            assumes: Assumptions::NONE,
        }
    }
}

/// Class of a token: one of ten tokens is special, and two are punctuation.
fn class(token: usize) -> TokenClass {
    match token % 10 {
        0 => TokenClass::Special,
        1 | 2 => TokenClass::Punctuation,
        _ => TokenClass::Other,
    }
}

/// Lets the selectors observe the queries of the newest token as those of a prompt, and gives them
/// feedback for a step with a sequence number that no trial uses.
fn teach(pipeline: &mut Pipeline, head: &HeadData) {
    let sequence = pipeline.site().sequence;
    pipeline.set_sequence(u32::MAX);
    let site = *pipeline.site();
    let step = head.step(&site);
    let queries = ArrayView3::from_shape((head.group, 1, head.head_dim), &head.queries)
        .expect("a head has a query for each member of its group");
    let (keys, values) = (step.keys, step.values);
    pipeline.observe(&PromptQueries { site: &site, queries, keys, values, form: step.form });
    if pipeline.needs_feedback() {
        let reading = pipeline.read(&step).expect("the selectors have observed a prompt");
        for row in step.rows() {
            let list = reading.list(row.member());
            let (weights, sink) = attention(&row, &list);
            let attended = AttentionWeights { tokens: &list.indices, weights: &weights, sink };
            pipeline.feedback(&row, &attended);
        }
    }
    pipeline.set_sequence(sequence);
}

/// Attention weights `e / D^` of the tokens of a list, and of the attention sink.
fn attention(row: &Row<'_>, list: &List) -> (Vec<f32>, f32) {
    let logits = list.indices.iter().map(|&token| f64::from(row.logit(token as usize)));
    let logits: Vec<f64> = logits.collect();
    let mut sums = Softmax::new(0);
    for (&logit, &p) in logits.iter().zip(&list.probabilities) {
        sums.add(logit, 1.0 / f64::from(p), &[]);
    }
    if let Some(sink) = row.sink_logit() {
        sums.add_sink(sink.into());
    }
    let weight = |logit: f64| (logit - sums.log_denominator()).exp() as f32;
    let sink = row.sink_logit().map_or(0.0, |sink| weight(sink.into()));
    (logits.into_iter().map(weight).collect(), sink)
}

/// Returns true if an error exceeds the allowed one, or is NaN.
fn exceeds(error: f64, allowed: f64) -> bool {
    error.is_nan() || error > allowed
}

/// Error that, by a certificate, is exceeded with a probability of at most delta.
fn allowed(certificate: &Certificate) -> f64 {
    match (certificate.promise, certificate.bar) {
        (Some(promise), _) => promise.epsilon.get(),
        (None, Some(bar)) => bar.radius + ROUNDING,
        (None, None) => {
            panic!("the certificate has neither promise nor error bar: {certificate:?}")
        }
    }
}

impl ExactAttention {
    /// Computes the attention of a member of the group.
    fn new(head: &HeadData, member: usize) -> Self {
        let logits = logits(head, member);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sink = head.form().sink_logit(member);
        let sink = sink.map_or(0.0, |sink| (f64::from(sink) - largest).exp());
        let mut sums = OutputSums::of_sink(sink);
        for (value, &e) in head.values.chunks_exact(VALUE_DIM).zip(&e) {
            sums.add(e, value);
        }
        Self { e, sink, sums }
    }

    /// Error of a reading in the target of its promise.
    fn error(&self, values: &[f32], reading: &Reading, member: usize) -> f64 {
        let found = self.sums_of(values, reading.read_by(member));
        let certificate = reading.report(member).certificate;
        let bar = certificate.bar.map(|bar| bar.target);
        let promise = certificate.promise.map(|promise| promise.target);
        let target = promise.or(bar).unwrap_or(Target::Sdpa);
        let share = found.denominator / self.sums.denominator;
        let scale = match target {
            Target::Denominator => return (share - 1.0).abs(),
            Target::Numerator => share,
            Target::Sdpa => 1.0,
        };
        let (got, want) = (found.output(), self.sums.output());
        let apart = got.iter().zip(want).map(|(got, want)| got * scale - want);
        length(apart) / length(want.into_iter())
    }

    /// Sums over the tokens of a token list.
    fn sums_of(&self, values: &[f32], read: &Read) -> OutputSums {
        let mut sums = OutputSums::of_sink(self.sink);
        for (token, p) in read.entries() {
            let token = token as usize;
            let value = &values[token * VALUE_DIM..][..VALUE_DIM];
            sums.add(self.e[token] / f64::from(p), value);
        }
        sums
    }
}

impl OutputSums {
    /// Sums over no tokens, for an attention sink with this weight.
    fn of_sink(e: f64) -> Self {
        Self { numerator: [0.0; VALUE_DIM], denominator: e }
    }

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
