//! The promise on heads that are built to break it: 2,000 samples of each population and pipeline,
//! 250 of each of eight heads. Each head's count, and the count over all eight, is judged at a level
//! of 1e-6. Every head has its own seed, which draws its numbers and keys the pipeline.
//!
//! The table here takes minutes; the ignored test sweeps every parameter
//! (`cargo test --release --test suite adversaries:: -- --ignored --nocapture`), and `just attacks`
//! searches for worse heads.

use std::sync::{Arc, Mutex};

use vattention::estimators::{Mode, Ratio};
use vattention::samplers::{LogitIndex, Priority, Stratified};
use vattention::selectors::{OracleTopK, Sink, Window};
use vattention::{
    PipelineConfig, Share, Size,
    plugin::{Estimator, SamplerConfig, Score, Uniform},
};
use vattention_testkit::adversarial::{AdversarialHead, Adversary, BLOCK, sweep};
use vattention_testkit::promises::{PromiseTrials, RowCounts, contradicted_of, for_each};

use crate::common::draws::{ENDS, FIRST, fraction, ratio};

/// Heads of each population.
const HEADS: u32 = 8;

/// Samples of each head.
const TRIALS: u32 = 250;

const DELTA: f64 = 0.1;

/// How the tokens of a head are read.
#[derive(Clone, Copy, Debug)]
enum Method {
    /// Draws by approximate attention.
    Priority(LogitIndex, Mode),
    /// Draws within strata, after an exact top-k.
    Stratified(Mode),
    /// Uniform draws, after an exact top-k.
    Uniform(Mode),
}

impl Method {
    fn mode(self) -> Mode {
        let (Self::Priority(_, mode) | Self::Stratified(mode) | Self::Uniform(mode)) = self;
        mode
    }

    fn sampler(self) -> Box<dyn SamplerConfig> {
        match self {
            Self::Priority(index, _) => Box::new(Priority { base: FIRST, index }),
            Self::Stratified(_) => Box::new(Stratified { base: FIRST }),
            Self::Uniform(_) => Box::new(Uniform { base: FIRST }),
        }
    }

    /// Tokens that are always read because they weigh most.
    fn top(self, tokens: usize) -> Option<usize> {
        match self {
            Self::Priority(LogitIndex::Selectors, _) => Some(tokens / 50),
            Self::Priority(..) => None,
            Self::Stratified(_) | Self::Uniform(_) => Some(tokens / 20),
        }
    }

    fn pipeline(
        self,
        tokens: usize,
        share: Share,
        estimator: Box<dyn Estimator>,
    ) -> Arc<PipelineConfig> {
        let ends = Size::Tokens(ENDS / 2);
        let mut config = PipelineConfig {
            share,
            selectors: vec![Box::new(Sink { size: ends }), Box::new(Window { size: ends })],
            sampler: Some(self.sampler()),
            estimator: Some(estimator),
            ..PipelineConfig::default()
        };
        if let Some(top) = self.top(tokens) {
            let size = Size::Tokens(top);
            config.selectors.push(Box::new(OracleTopK { size, score: Score::Head }));
        }
        Arc::new(config)
    }
}

/// Counts of one population and pipeline.
struct Cell {
    /// The most violations of any query head of any head.
    worst: usize,
    /// Violations over all heads, of the query head that has most.
    pooled: usize,
    /// Share of the tokens that were read.
    read: f64,
}

impl Cell {
    /// Samples heads of a population, and counts what `count` takes from each row.
    fn run(
        head: AdversarialHead,
        config: &Arc<PipelineConfig>,
        count: fn(&RowCounts) -> usize,
    ) -> Self {
        let mut pooled = vec![0; head.group];
        let (mut worst, mut read) = (0, 0.0);
        for seed in 0..HEADS {
            let data = AdversarialHead { seed: seed.into(), ..head }.data();
            let trials = PromiseTrials::with_data(data, config, seed.into());
            let (counts, rows) = trials.run_trials(TRIALS);
            read += counts.read / head.tokens as f64 / f64::from(HEADS);
            for (pooled, row) in pooled.iter_mut().zip(&rows) {
                *pooled += count(row);
                worst = worst.max(count(row));
            }
        }
        let pooled = pooled.into_iter().max().unwrap();
        Self { worst, pooled, read }
    }

    fn is_contradicted(&self, delta: f64) -> bool {
        let all = HEADS * TRIALS;
        contradicted_of(self.worst, TRIALS as usize, delta)
            || contradicted_of(self.pooled, all as usize, delta)
    }
}

/// Tries methods on populations, with one list per query head and with one for all of them.
fn check(cells: &[(Vec<AdversarialHead>, Method)]) {
    let broken = |(heads, method): &(Vec<AdversarialHead>, Method)| {
        let estimator = || ratio(method.mode(), 0.1, DELTA);
        find_broken(heads, *method, estimator, |row| row.violated, DELTA)
    };
    expect_none(&cells.iter().flat_map(broken).collect::<Vec<_>>());
}

/// The cells whose counts contradict delta.
fn find_broken(
    heads: &[AdversarialHead],
    method: Method,
    estimator: impl Fn() -> Ratio + Sync,
    count: fn(&RowCounts) -> usize,
    delta: f64,
) -> Vec<String> {
    let broken = Mutex::new(Vec::new());
    for_each(heads, |&head| {
        // Many query heads, each for itself, are like one, and take long.
        let shares: &[Share] = match head.group {
            1 => &[Share::Head],
            2..8 => &[Share::Head, Share::Group],
            _ => &[Share::Group],
        };
        for &share in shares {
            let config = method.pipeline(head.tokens, share, Box::new(estimator()));
            let cell = Cell::run(head, &config, count);
            let line = format!(
                "{:?}, dim {}, group {}, {share:?}, {method:?}: worst head {} of {TRIALS}, all {} \
                 of {}, {:.1} % read",
                head.kind,
                head.head_dim,
                head.group,
                cell.worst,
                cell.pooled,
                HEADS * TRIALS,
                100.0 * cell.read,
            );
            println!("{line}");
            if cell.is_contradicted(delta) {
                broken.lock().unwrap().push(line);
            }
        }
    });
    broken.into_inner().unwrap()
}

fn expect_none(broken: &[String]) {
    assert!(broken.is_empty(), "{} cells contradict delta:\n{}", broken.len(), broken.join("\n"));
}

/// Populations of 64 elements and one query head.
fn plain() -> Vec<AdversarialHead> {
    let kinds = [
        Adversary::UnequalKeys { factor: 2.0 },
        Adversary::UnequalKeys { factor: 5.0 },
        Adversary::UnequalKeys { factor: 8.0 },
        Adversary::UnequalKeys { factor: 15.0 },
        Adversary::UnequalKeys { factor: 40.0 },
        Adversary::LateSink { factor: 5.0, place: 0 },
        Adversary::LateSink { factor: 12.0, place: 32 },
        Adversary::LateSink { factor: 40.0, place: BLOCK - 1 },
        Adversary::LargeLogits { deviation: 10.0 },
        Adversary::LargeLogits { deviation: 1e3 },
        Adversary::LargeLogits { deviation: 5e4 },
        Adversary::LargeLogits { deviation: 1e5 },
        Adversary::LargeLogits { deviation: 2e5 },
        Adversary::SignChanges { breaks: 1, mean: 0.02 },
        Adversary::SignChanges { breaks: 1, mean: 0.05 },
        Adversary::SignChanges { breaks: 1, mean: 0.1 },
        Adversary::SignChanges { breaks: 1, mean: 0.2 },
        Adversary::SignChanges { breaks: 5, mean: 0.05 },
        Adversary::Cancelling,
        Adversary::RandomSigns { mean: 0.02 },
        Adversary::RandomSigns { mean: 0.2 },
        Adversary::RegimeChange { factor: 10.0, place: 0 },
        Adversary::RegimeChange { factor: 3.0, place: 32 },
        Adversary::RegimeChange { factor: 10.0, place: 56 },
        Adversary::RegimeChange { factor: 30.0, place: BLOCK - 1 },
        Adversary::IgnoredAxis { factor: 10.0 },
        Adversary::IgnoredAxis { factor: 40.0 },
        Adversary::DistantNeedle { depth: 10.0, place: 0 },
        Adversary::DistantNeedle { depth: 60.0, place: BLOCK - 1 },
        Adversary::OutlierChannels { channels: 1, magnitude: 200.0, share: 1.0 },
        Adversary::OutlierChannels { channels: 1, magnitude: 5000.0, share: 0.01 },
        Adversary::CommonOffset { length: 30.0 },
        Adversary::CommonOffset { length: 3000.0 },
    ];
    let head = |kind| {
        let tokens = match kind {
            // With fewer tokens, those that are drawn are sooner all that weighs anything.
            Adversary::LargeLogits { .. } => 1024,
            // With more tokens, more strata have no change of sign.
            Adversary::SignChanges { .. } => 8192,
            _ => 4096,
        };
        AdversarialHead { tokens, ..AdversarialHead::new(kind) }
    };
    kinds.map(head).into()
}

/// Some kinds with other head dimensions and groups.
fn shaped() -> Vec<AdversarialHead> {
    let kinds = [
        Adversary::UnequalKeys { factor: 8.0 },
        Adversary::LateSink { factor: 12.0, place: 20 },
        Adversary::RegimeChange { factor: 10.0, place: 56 },
        Adversary::DistantNeedle { depth: 20.0, place: 10 },
    ];
    let shapes = [(32, 4), (128, 2), (256, 16)];
    let head = |kind, (head_dim, group)| AdversarialHead {
        head_dim,
        group,
        tokens: 2048,
        ..AdversarialHead::new(kind)
    };
    kinds.into_iter().flat_map(|kind| shapes.map(|shape| head(kind, shape))).collect()
}

/// The table of ordinary runs.
fn table() -> Vec<AdversarialHead> {
    [plain(), shaped()].concat()
}

/// One population of each kind, for methods that read most tokens.
fn one_of_each() -> Vec<AdversarialHead> {
    let kinds = [
        Adversary::UnequalKeys { factor: 15.0 },
        Adversary::LateSink { factor: 12.0, place: 32 },
        Adversary::LargeLogits { deviation: 1e5 },
        Adversary::SignChanges { breaks: 1, mean: 0.2 },
        Adversary::RandomSigns { mean: 0.1 },
        Adversary::RegimeChange { factor: 10.0, place: 56 },
        Adversary::IgnoredAxis { factor: 40.0 },
        Adversary::DistantNeedle { depth: 30.0, place: 0 },
        Adversary::OutlierChannels { channels: 4, magnitude: 5000.0, share: 0.01 },
        Adversary::CommonOffset { length: 3000.0 },
    ];
    kinds.map(|kind| AdversarialHead { tokens: 2048, ..AdversarialHead::new(kind) }).into()
}

#[test]
fn codes_of_2_bits_keep_the_promise() {
    check(&[(table(), Method::Priority(LogitIndex::Codes, Mode::Default))]);
}

#[test]
fn codes_of_2_bits_keep_the_promise_in_strict_mode() {
    check(&[(plain(), Method::Priority(LogitIndex::Codes, Mode::Strict))]);
}

#[test]
fn keys_in_8_bits_keep_the_promise() {
    check(&[(table(), Method::Priority(LogitIndex::Keys, Mode::Default))]);
}

#[test]
fn keys_in_8_bits_keep_the_promise_in_strict_and_rigorous_mode() {
    let method = |mode| Method::Priority(LogitIndex::Keys, mode);
    check(&[Mode::Strict, Mode::Rigorous].map(|mode| (one_of_each(), method(mode))));
}

#[test]
fn scores_of_a_selector_keep_the_promise() {
    check(&[(table(), Method::Priority(LogitIndex::Selectors, Mode::Default))]);
}

#[test]
fn strata_keep_the_promise() {
    check(&[
        (plain(), Method::Stratified(Mode::Default)),
        (one_of_each(), Method::Stratified(Mode::Strict)),
    ]);
}

#[test]
fn uniform_draws_keep_the_promise() {
    check(&[
        (plain(), Method::Uniform(Mode::Default)),
        (one_of_each(), Method::Uniform(Mode::Strict)),
        (one_of_each(), Method::Uniform(Mode::Rigorous)),
    ]);
}

/// Error bars of a budget, where an estimate of the output's norm is mostly noise.
#[test]
fn bars_are_as_sure_as_they_say_where_values_cancel() {
    let (size, delta) = (400, 0.02);
    let kinds = [
        Adversary::Cancelling,
        Adversary::RandomSigns { mean: 0.02 },
        Adversary::RandomSigns { mean: 0.05 },
        Adversary::RandomSigns { mean: 0.2 },
    ];
    let heads = kinds.map(AdversarialHead::new);
    let methods = [
        Method::Priority(LogitIndex::Codes, Mode::Default),
        Method::Stratified(Mode::Default),
        Method::Uniform(Mode::Default),
    ];
    let broken = methods.into_iter().flat_map(|method| {
        let sized = || Ratio::sized(Size::Tokens(size), fraction(delta));
        find_broken(&heads, method, sized, |row| row.outside, delta)
    });
    expect_none(&broken.collect::<Vec<_>>());
}

/// All parameters.
#[test]
#[ignore = "it takes hours"]
fn every_sampler_keeps_the_promise_on_the_whole_sweep() {
    let methods = [
        Method::Priority(LogitIndex::Codes, Mode::Default),
        Method::Priority(LogitIndex::Codes, Mode::Strict),
        Method::Priority(LogitIndex::Keys, Mode::Default),
        Method::Priority(LogitIndex::Selectors, Mode::Default),
        Method::Stratified(Mode::Default),
        Method::Uniform(Mode::Default),
    ];
    check(&methods.map(|method| (sweep(), method)));
}
