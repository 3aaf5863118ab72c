//! Violations that `verify` finds and a pooled count does not, and error messages of `verify`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::trace_layer;
use ndarray::{Array3, s};
use serde::{Deserialize, Serialize};
use vattention::experiments::{
    Entry, Evidence, FailureCause, LEVEL, ListCounts, PromiseTest, PromiseVerdict, Results,
    RowsTogether, TraceSettings, Verification, ViolationCount, compare, verify, with_epsilon,
};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::trace::{Trace, TraceInfo, TraceLayer, write_trace};
use vattention::{
    Fraction, Goal, Kind, PipelineConfig, Promise, Scope, Share, Size, Storage, Target, backend,
    estimators::Ratio,
    plugin::{
        Assumptions, Design, Estimator, Picks, Radius, Row, SampleStats, Sampler, SamplerConfig,
        Site, Stream, Uniform, register, typetag,
    },
};

/// One head, twenty queries, 3,000 tokens. Three tokens have nearly all attention of the query
/// `hidden`, if any, and a sample of a hundred tokens misses them. The other queries attend to all
/// tokens equally.
fn layer(hidden: Option<usize>) -> TraceLayer {
    let hidden: Vec<usize> = hidden.into_iter().collect();
    layer_of(20, &hidden)
}

/// A layer like [`layer`] with any number of queries, of which the queries `hidden` attend to three
/// tokens.
fn layer_of(queries: usize, hidden: &[usize]) -> TraceLayer {
    let mut keys = Array3::zeros((1, 3000, 2));
    let mut values = Array3::from_elem((1, 3000, 1), 1.0);
    for token in [700, 1500, 2300] {
        keys[[0, token, 0]] = 10.0;
        values[[0, token, 0]] = 2.0;
    }
    let mut queries = Array3::zeros((1, queries, 2));
    for &query in hidden {
        queries[[0, query, 0]] = 1.0;
    }
    trace_layer(queries, keys, values)
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

fn run(layer: TraceLayer, trials: u32) -> vattention::experiments::Result<Verification> {
    let tenth = fraction(0.1);
    let estimator = Some(Box::new(Ratio::new(tenth, tenth)) as _);
    run_pipeline(layer, PipelineConfig { estimator, ..PipelineConfig::default() }, trials)
}

fn run_pipeline(
    layer: TraceLayer,
    pipeline: PipelineConfig,
    trials: u32,
) -> vattention::experiments::Result<Verification> {
    let folder = tempfile::tempdir().unwrap();
    let trace = open_trace(&folder, layer);
    verify(&Arc::new(pipeline), &trace, trials, &Results::default(), &|_, _| {})
}

fn open_trace(folder: &tempfile::TempDir, layer: TraceLayer) -> Trace {
    let path = folder.path().join("trace.safetensors");
    let info = TraceInfo { scale: Some(1.0), ..TraceInfo::default() };
    write_trace(&path, &info, &BTreeMap::from([(0, layer)]), Storage::F32).unwrap();
    Trace::open(&path).unwrap()
}

#[test]
fn a_row_that_always_fails_is_not_hidden_among_others() {
    let good = run(layer(None), 2000).unwrap();
    assert!(good.held && good.violations.violated == 0);
    let bad = run(layer(Some(7)), 2000).unwrap();
    let rate = bad.violations.share();
    assert!(rate < 0.1, "the rate of all queries together is above delta: {rate}");
    assert_eq!((bad.worst_row.query, bad.worst_row.trials), (Some(7), 100));
    assert!(bad.worst_row.violations > 50 && !bad.held, "{:?}", bad.worst_row);
}

/// The promise is violated nearly always for 90 of 1,000 queries, with two samples each. Together,
/// less than a tenth of the samples violate it, and two samples of one row contradict nothing.
#[test]
fn rows_that_always_fail_are_not_hidden_by_few_samples() {
    let hidden: Vec<usize> = (0..90).map(|i| 11 * i).collect();
    let bad = run(layer_of(1000, &hidden), 2000).unwrap();
    assert!(bad.violations.violated < 200 && bad.worst.p_value > 0.1, "{:?}", bad.worst);
    assert!(bad.row_test.contradicted_from.is_none());
    let worst = bad.rows_together.worst.unwrap();
    assert!(worst.at_least == 2 && worst.units > 50 && worst.allowed < 40, "{worst:?}");
    assert_eq!(bad.contradicted_by, [PromiseTest::RowsTogether]);
    assert_eq!((bad.verdict, bad.held), (PromiseVerdict::Contradicted, false));
    assert_eq!(bad.fault.unwrap().cause, FailureCause::TailSeen);
    let good = run(layer_of(1000, &[]), 2000).unwrap();
    assert_eq!((good.verdict, good.held, good.fault), (PromiseVerdict::Undecided, false, None));
    assert_eq!((good.row_coverage.judged, good.row_coverage.unjudged), (0, 1000));
}

/// A row of `k` samples can contradict delta = 0.1 among 40 rows if `0.1^k < 1e-6 / 40`, so `k`
/// must be at least 8.
#[test]
fn a_promise_is_held_only_if_every_row_could_have_contradicted_it() {
    let verdict = |trials| run(layer_of(40, &[]), trials).unwrap();
    for (trials, judged) in [(20, 0), (300, 20), (319, 39), (320, 40)] {
        let verdict = verdict(trials);
        let coverage = verdict.row_coverage;
        assert_eq!((coverage.judged, coverage.unjudged), (judged, 40 - judged), "{trials}");
        assert_eq!((coverage.least_samples, coverage.least_trials), (8, 320));
        let expected = if judged == 40 { PromiseVerdict::Held } else { PromiseVerdict::Undecided };
        assert_eq!((verdict.verdict, verdict.held), (expected, judged == 40), "{trials}");
        assert!(verdict.contradicted_by.is_empty());
    }
}

/// A row violates its promise in more than a fifth of its samples. A hundred samples of each of
/// twenty rows do not contradict delta but make the row suspicious; a thousand contradict it.
#[test]
fn a_suspicious_row_is_not_held() {
    let verdict = |trials| {
        // With fewer visible tokens, the sample is smaller.
        let mut visible = vec![3000; 20];
        visible[3] = 1000;
        let layer = TraceLayer { visible: Some(visible), ..layer(None) };
        run_pipeline(layer, coin_pipeline(0.11), trials).unwrap()
    };
    let few = verdict(2000);
    assert_eq!((few.row_coverage.unjudged, few.contradicted_by.len()), (0, 0));
    assert_eq!(few.suspected_by, [PromiseTest::Row], "{:?}", few.worst_row);
    assert_eq!((few.worst_row.query, few.verdict), (Some(3), PromiseVerdict::Undecided));
    let many = verdict(20_000);
    assert!(many.contradicted_by.contains(&PromiseTest::Row) && many.suspected_by.is_empty());
}

/// The least number of trials suffices to find a row that always fails.
#[test]
fn the_least_trials_can_contradict_a_single_row() {
    let never = Stubborn { target: Target::Denominator, ..stubborn(0, 1e-9) };
    let enough = run_pipeline(layer_of(1, &[]), pipeline_with_coin(never), 7).unwrap();
    assert_eq!((enough.row_coverage.least_trials, enough.worst_row.violations), (7, 7));
    assert!(enough.contradicted_by.contains(&PromiseTest::Row), "{:?}", enough.worst_row);
}

/// Sixteen heads that share a token list are one unit at each query; with separate lists, they are
/// sixteen units. All heads of a step are one unit.
#[test]
fn heads_that_share_samples_are_one_unit() {
    let units = |share, scope| {
        let content = Stubborn { scope, target: Target::Denominator, ..stubborn(0, 0.1) };
        let pipeline = PipelineConfig { share, ..pipeline_with_coin(content) };
        let layer = TraceLayer { queries: Array3::zeros((16, 5, 2)), ..layer(None) };
        let RowsTogether { units, heads, samples, worst, .. } =
            run_pipeline(layer, pipeline, 30).unwrap().rows_together;
        (units, heads, samples, worst.is_some())
    };
    assert_eq!(units(Share::Group, Scope::Row), (5, 16, 6, true));
    assert_eq!(units(Share::Head, Scope::Row), (80, 1, 6, true));
    assert_eq!(units(Share::Group, Scope::Step), (5, 1, 6, true));
}

#[test]
fn too_few_queries_or_trials_are_an_error() {
    let none = TraceLayer { queries: Array3::zeros((1, 0, 2)), ..layer(None) };
    let error = run(none, 2000).unwrap_err().to_string();
    assert!(error.contains("`layers.0.queries` holds no queries"), "{error}");
    let error = run(layer(None), 6).unwrap_err().to_string();
    assert!(error.contains("6 cannot contradict delta = 0.1; expected at least 7"), "{error}");
}

/// Draws each token with probability 0.1. The estimated sum of 3,000 equal weights has a standard
/// deviation of 5.5 %.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Coin {}

#[typetag::serde(name = "coin")]
impl SamplerConfig for Coin {
    fn build(&self, _: &Site) -> vattention::Result<Box<dyn Sampler>> {
        Ok(Box::new(self.clone()))
    }

    fn base(&self) -> Size {
        Size::Tokens(300)
    }
}

register!(Sampler, "coin", Coin, "each token with probability 0.1");

impl Sampler for Coin {
    fn design<'a>(
        &'a self,
        rows: &[Row<'a>],
        _: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        let words = (0..rows[0].visible() as u32).zip(stream.words());
        Box::new(CoinDesign(
            words.filter(|(_, word)| word % 10 == 0).map(|(token, _)| token).collect(),
        ))
    }
}

/// Tokens that were drawn.
struct CoinDesign(Vec<u32>);

impl Design for CoinDesign {
    fn extend(&mut self, _: usize, out: &mut Vec<u32>) {
        out.extend(&self.0);
    }

    fn probabilities(&self) -> Vec<f64> {
        vec![0.1; self.0.len()]
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        vec![90.0; self.0.len()]
    }
}

/// A pipeline with the sampler [`Coin`], whose estimator accepts any sample.
fn coin_pipeline(epsilon: f64) -> PipelineConfig {
    pipeline_with_coin(Stubborn { target: Target::Denominator, ..stubborn(0, epsilon) })
}

/// A pipeline with the sampler [`Coin`] and an estimator.
fn pipeline_with_coin(estimator: Stubborn) -> PipelineConfig {
    PipelineConfig {
        sampler: Some(Box::new(Coin {})),
        estimator: Some(Box::new(estimator)),
        ..PipelineConfig::default()
    }
}

/// If samples were drawn once for each query, a row would violate a promise always or never.
#[test]
fn samples_are_drawn_anew_for_each_trial() {
    let verdict = |epsilon| run_pipeline(layer(None), coin_pipeline(epsilon), 2000).unwrap();
    let verified = verdict(0.1);
    let rate = verified.violations.share();
    assert!(verified.held && (0.04..0.1).contains(&rate), "{rate}: {:?}", verified.worst_row);
    assert_eq!(verified.kind, Kind::Asymptotic);
    assert!(!verdict(0.05).held);
}

/// Claims an error of 0 for any sample of at least `tokens` tokens, and promises a given epsilon.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Stubborn {
    tokens: usize,
    epsilon: Fraction,
    scope: Scope,
    target: Target,
}

#[typetag::serde(name = "stubborn")]
impl Estimator for Stubborn {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let relative = if stats.b < self.tokens { f64::INFINITY } else { 0.0 };
        Radius::new(relative, Kind::Asymptotic, Assumptions::ALL)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let promise = Promise::new(self.target, self.epsilon, fraction(0.1));
        Ok(Goal::from(Promise { scope: self.scope, ..promise }))
    }
}

register!(Estimator, "stubborn", Stubborn, "a fixed number of tokens");

fn stubborn(tokens: usize, epsilon: f64) -> Stubborn {
    let epsilon = fraction(epsilon);
    Stubborn { tokens, epsilon, scope: Scope::Row, target: Target::Sdpa }
}

/// Verdict on an estimator with uniform samples that begin with `base` tokens.
fn verify_uniform(layer: TraceLayer, base: usize, estimator: Stubborn) -> Verification {
    let pipeline = PipelineConfig {
        sampler: Some(Box::new(Uniform { base: Size::Tokens(base) })),
        estimator: Some(Box::new(estimator)),
        ..PipelineConfig::default()
    };
    run_pipeline(layer, pipeline, 2000).unwrap()
}

/// Layer with `heads` query heads of one KV head, one query, 3,000 equal weights and the given
/// values.
fn flat_layer(heads: usize, value: impl Fn(usize) -> f32) -> TraceLayer {
    let values = Array3::from_shape_fn((1, 3000, 1), |(_, token, _)| value(token));
    let (queries, keys) = (Array3::zeros((heads, 1, 2)), Array3::zeros((1, 3000, 2)));
    trace_layer(queries, keys, values)
}

#[test]
fn the_assumption_that_fails_is_named() {
    // Three tokens have nearly all attention, and most samples miss them.
    let bad = run(layer(Some(7)), 2000).unwrap();
    let fault = bad.fault.unwrap();
    assert_eq!((fault.cause, fault.layer, fault.query_head), (FailureCause::TailSeen, 0, 0));
    assert!(fault.share > 0.95, "{fault:?}");
    assert_eq!(
        bad.heads[0].failures.tail_seen + bad.heads[0].failures.count(FailureCause::Normal),
        bad.violations.violated
    );

    // Values are 1 and 3 alternately. Samples of two tokens that miss the mean have equal values,
    // so their variance is zero.
    let two = verify_uniform(flat_layer(1, |token| [1.0, 3.0][token % 2]), 2, stubborn(2, 0.4));
    let fault = two.fault.unwrap();
    assert_eq!(
        (fault.cause, fault.share),
        (FailureCause::Moments, 1.0),
        "{:?}",
        two.heads[0].failures
    );

    // A hundred values 0 and 2 estimate mean and variance well, but epsilon is half a standard
    // deviation.
    let coin = |token: usize| 2.0 * (token % 2) as f32;
    let hundred = verify_uniform(flat_layer(1, coin), 100, stubborn(100, 0.05));
    let fault = hundred.fault.unwrap();
    assert!(fault.cause == FailureCause::Normal && fault.share > 0.99, "{fault:?}");
    assert!(!hundred.held && verify_uniform(flat_layer(1, coin), 100, stubborn(100, 0.2)).held);
}

/// Without a uniform sample there are no statistics of the residual, but missed heavy tokens are
/// still found.
#[test]
fn heavy_tokens_that_another_sampler_misses_are_named() {
    let verdict = |layer| {
        let verdict = run_pipeline(layer, coin_pipeline(0.05), 2000).unwrap();
        assert!(verdict.heads[0].nu.is_none());
        verdict.fault.unwrap()
    };
    assert_eq!(verdict(layer(None)).cause, FailureCause::MomentsOrNormal);
    let mut heavy = layer(Some(0));
    heavy.queries = heavy.queries.slice_move(s![.., 0..1, ..]);
    assert_eq!(verdict(heavy).cause, FailureCause::TailSeen);
}

/// Each head violates its bound in less than a tenth of the steps, but all heads together violate
/// theirs more often.
#[test]
fn a_promise_about_a_step_is_about_all_heads_of_a_layer() {
    let layer = || {
        // Sixteen KV heads of one query head each draw separate samples.
        let coin = |(_, token, _): (usize, usize, usize)| 2.0 * (token % 2) as f32;
        let values = Array3::from_shape_fn((16, 3000, 1), coin);
        trace_layer(Array3::zeros((16, 4, 2)), Array3::zeros((16, 3000, 2)), values)
    };
    // The standard deviation is 9.8 %, so each head exceeds 0.19 with probability 0.05.
    let verdict = |scope| verify_uniform(layer(), 100, Stubborn { scope, ..stubborn(100, 0.19) });
    let (row, step) = (verdict(Scope::Row), verdict(Scope::Step));
    assert!(row.held && row.steps.is_empty() && row.violations.checked == 16 * 2000);
    assert!(!step.held && step.violations.checked == 2000 && step.worst_row.query_head.is_none());
    let worst = step.heads.iter().map(|head| head.violations).max().unwrap();
    let all: usize = step.heads.iter().map(|head| head.violations).sum();
    let together = step.steps[0].violations;
    assert!(worst < 300 && together > 1000 && together <= all, "{worst}, {together}, {all}");
    assert_eq!(step.fault.unwrap().cause, FailureCause::Normal);
}

#[test]
fn another_epsilon_needs_a_tunable_promise() {
    let with = |estimator: Box<dyn Estimator>| PipelineConfig {
        estimator: Some(estimator),
        ..PipelineConfig::default()
    };
    let ratio = with(Box::new(Ratio::new(fraction(0.2), fraction(0.1))));
    let other = with_epsilon(&ratio, fraction(0.4)).unwrap();
    let promise = Promise::new(Target::Sdpa, fraction(0.4), fraction(0.1));
    assert_eq!(other.promise(), Some(promise));
    for nothing_to_set in [PipelineConfig::default(), with(Box::new(stubborn(9, 0.2)))] {
        assert!(with_epsilon(&nothing_to_set, fraction(0.4)).is_none());
    }
}

/// Sixteen equal heads share a list at each of 64 queries. The rate of violations is 0.08, and 0.1
/// is promised. Lists are independent, but rows are not.
#[test]
fn a_comparison_does_not_contradict_a_kept_promise() {
    let folder = tempfile::tempdir().unwrap();
    let equal_heads = TraceLayer { queries: Array3::zeros((16, 64, 2)), ..flat_layer(16, |_| 1.0) };
    let trace = open_trace(&folder, equal_heads);
    let (mut violated, mut contradicted_by_rows) = (0, 0);
    for seed in 0..60 {
        let pipeline = Arc::new(PipelineConfig { seed, ..coin_pipeline(0.096) });
        let entry = Entry { pipeline, file: "coin".into(), set: None };
        let (settings, results) = (TraceSettings::default(), Results::default());
        let backend = backend("reference").unwrap();
        let found = compare(&[entry], &trace, &*backend, &settings, &results, &|_, _| ()).unwrap();
        let guarantee = found.0.pipelines[0].guarantee.unwrap();
        assert_eq!(guarantee.lists, ListCounts { count: 64, heads_per_list: 16 });
        assert_ne!(guarantee.evidence, Evidence::Contradicted, "{guarantee:?}");
        let ViolationCount { violated: of_rows, checked: rows, .. } = guarantee.violations;
        assert_eq!((rows, of_rows % 16), (1024, 0), "heads differ");
        violated += of_rows;
        contradicted_by_rows +=
            usize::from(Evidence::new(of_rows, rows, 0.1, LEVEL) == Evidence::Contradicted);
    }
    let rate = f64::from(violated as u32) / (60.0 * 1024.0);
    assert!((0.07..0.09).contains(&rate) && contradicted_by_rows > 0, "{contradicted_by_rows}");
}
