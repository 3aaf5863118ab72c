//! Tests of the rules that every pipeline obeys:
//!
//! 1. Among equal scores the lower token is picked first.
//! 2. A share of a context is rounded down to a number of tokens, at least 1. A size counts only
//!    tokens that are not picked yet.
//! 3. The sample is drawn without replacement from the residual, the tokens that no selector
//!    picked, and the estimated sums are unbiased.
//! 4. The weight of a pick is 1, and that of a drawn token is its inverse inclusion probability.
//! 5. The query heads of a shared list read the union of their picks and one sample, whose size is
//!    the largest and whose promise is the weakest that any of them requires.
//! 6. A sample is keyed by seed, sequence, layer, head and step, and a larger sample contains a
//!    smaller one.
//! 7. A sample grows until the estimator finds it large enough, or until the last check.
//! 8. Reading every token equals dense attention.
//! 9. Density is counted for each query head, and for the query heads of a KV head together.
//! 10. All backends read the same tokens, and their outputs agree up to rounding.
//!
//! Rules 1 and 2 are tested in `step/top/tests.rs` and `size.rs`, rule 6 also in `stream.rs` and
//! `golden_order.rs`, and rule 10 in `tests/suite/backends.rs` of the workspace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use vattention_core::{
    Error, Estimator, Fraction, Goal, Kind, Picks, Pipeline, PipelineConfig, Promise, Result, Row,
    SampleStats, Sampler, SamplerConfig, Selector, SelectorConfig, Shape, Share, Site, Size, Step,
    Target, Tokens,
    pipeline::{LayerSettings, List, Reading},
    plugin::{AttentionWeights, Design, Radius, SampleEvidence, Schedule, Uniform},
    promise::{Assumptions, SampleGoal},
    sample::{Accumulator, ExactAccumulator, RemainingWork, Residual, Sample, SampleUse},
    step::{Softmax, Stream},
    typetag,
};

/// Implements `SelectorConfig` for test selectors that are their own configuration.
macro_rules! selectors {
    ($($name:literal: $selector:ident),* $(,)?) => {$(
        #[typetag::serde(name = $name)]
        impl SelectorConfig for $selector {
            fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
                Ok(Box::new(self.clone()))
            }
        }
    )*};
}

selectors! {
    "take": Take,
    "take-rest": TakeRest,
    "count-picks": CountPicks,
    "recorder": Recorder,
    "take-for-all": TakeForAll,
    "bound-second": BoundSecond,
}

/// Picks given tokens, offset by a multiple of the member's index.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Take {
    tokens: Vec<usize>,
    #[serde(default)]
    per_member: usize,
}

impl Selector for Take {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        for token in &self.tokens {
            picks.take(token + self.per_member * row.member());
        }
    }
}

/// Picks every visible token that the selectors before it have not picked.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TakeRest {}

impl Selector for TakeRest {
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        let rest: Vec<usize> = picks.residual().collect();
        picks.take_all(rest);
    }
}

/// Draws given tokens with one probability, and provides no evidence of its error.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Draw {
    tokens: Vec<usize>,
    p: f64,
}

#[typetag::serde(name = "draw")]
impl SamplerConfig for Draw {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(self.clone()))
    }

    fn base(&self) -> Size {
        Size::Tokens(1)
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Nothing
    }

    fn shares(&self) -> bool {
        false
    }
}

impl Sampler for Draw {
    fn design<'a>(&'a self, _: &[Row<'a>], _: &'a Picks, _: &Stream) -> Box<dyn Design + 'a> {
        Box::new(self.clone())
    }
}

impl Design for Draw {
    fn extend(&mut self, _: usize, out: &mut Vec<u32>) {
        out.extend(self.tokens.iter().map(|&token| token as u32));
    }

    fn probabilities(&self) -> Vec<f64> {
        vec![self.p; self.tokens.len()]
    }

    fn factors(&self, _: usize) -> Vec<f64> {
        vec![f64::NAN; self.tokens.len()]
    }
}

/// Begins with 100 tokens, and fails if it has to draw.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct NoDraws {}

#[typetag::serde(name = "no-draws")]
impl SamplerConfig for NoDraws {
    fn build(&self, _: &Site) -> Result<Box<dyn Sampler>> {
        Ok(Box::new(self.clone()))
    }

    fn base(&self) -> Size {
        Size::Tokens(100)
    }
}

impl Sampler for NoDraws {
    fn design<'a>(&'a self, _: &[Row<'a>], _: &'a Picks, _: &Stream) -> Box<dyn Design + 'a> {
        unreachable!("a draw")
    }
}

/// A promise with epsilon and delta of one half.
fn half() -> Promise {
    let half = Fraction::try_from(0.5).unwrap();
    Promise::new(Target::Sdpa, half, half)
}

/// Error bar of an estimator that requires `tokens`.
fn radius_of_request(tokens: usize, stats: &SampleStats, kind: Kind) -> Radius {
    let relative = if stats.b >= tokens.min(stats.n_s) { 0.0 } else { f64::INFINITY };
    Radius { relative, kind, assumes: Assumptions::NONE }
}

/// Requires `plus + times · b` tokens when `b` have been drawn.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Request {
    plus: usize,
    times: usize,
    rounds: usize,
    promise: bool,
}

#[typetag::serde(name = "request")]
impl Estimator for Request {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let kind = if self.promise { Kind::Asymptotic } else { Kind::None };
        radius_of_request(self.plus + self.times * stats.drawn, stats, kind)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let goal = Goal::from(half());
        if self.promise {
            return Ok(goal);
        }
        Ok(Goal { sample: SampleGoal::Size { size: Size::Tokens(self.plus) }, ..goal })
    }

    fn schedule(&self) -> Schedule {
        match self.rounds {
            0 => Schedule::Before,
            rounds => Schedule::Adaptive { rounds },
        }
    }
}

/// Estimators that depend on one statistic.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum RequestBy {
    /// Requires more tokens for a larger estimated output.
    Output,
    /// Claims a proof if the output is larger than this.
    ProvedAbove(f64),
    /// Claims a proof if the weights of unpicked tokens are bounded.
    Bound,
}

#[typetag::serde(name = "request-by")]
impl Estimator for RequestBy {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let output = stats.norm_n / stats.d;
        let (tokens, proved) = match self {
            Self::Output => ((100.0 * output) as usize, false),
            Self::ProvedAbove(least) => (1, output > *least),
            Self::Bound => (1, stats.bound.is_some()),
        };
        let kind = if proved { Kind::FiniteSample } else { Kind::Asymptotic };
        let assumes = if proved { Assumptions::NONE } else { Assumptions::ALL };
        Radius { assumes, ..radius_of_request(tokens, stats, kind) }
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        Ok(half().into())
    }
}

fn take(tokens: impl IntoIterator<Item = usize>) -> Take {
    Take { tokens: tokens.into_iter().collect(), per_member: 0 }
}

fn config(selectors: Vec<Box<dyn SelectorConfig>>) -> PipelineConfig {
    PipelineConfig { seed: 5, selectors, ..PipelineConfig::default() }
}

fn sampled(
    selectors: Vec<Box<dyn SelectorConfig>>,
    base: usize,
    request: Request,
) -> PipelineConfig {
    PipelineConfig {
        sampler: Some(Box::new(Uniform { base: Size::Tokens(base) })),
        estimator: Some(Box::new(request)),
        ..config(selectors)
    }
}

fn fixed(tokens: usize) -> Request {
    Request { plus: tokens, times: 0, rounds: 0, promise: false }
}

/// A KV head whose queries, keys and values have one element.
struct TestHead {
    site: Site,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    step: u32,
}

impl TestHead {
    fn new(n: usize, group: usize) -> Self {
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let small = |i: usize, m: usize| ((i * 7 + i / 3) % m) as f32;
        Self {
            site: Site { seed: 5, sequence: 0, layer: 0, kv_head: 0, shape },
            queries: (0..group).map(|member| 0.5 + member as f32).collect(),
            keys: (0..n).map(|i| small(i, 4) - 1.5).collect(),
            values: (0..n).map(|i| small(i + 1, 5) + 1.0).collect(),
            step: 0,
        }
    }

    fn with_place(mut self, site: Site, step: u32) -> Self {
        (self.site, self.step) = (site, step);
        self
    }

    fn step(&self) -> Step<'_> {
        let n = self.keys.len();
        Step {
            step: self.step,
            ..Step::new(
                &self.site,
                &self.queries,
                Tokens::new(&self.keys, n, 1),
                Tokens::new(&self.values, n, 1),
            )
        }
    }

    fn read(&self, config: PipelineConfig) -> Reading {
        Pipeline::new(&Arc::new(config), self.site).unwrap().read(&self.step()).unwrap()
    }

    fn sums(&self, list: &List, member: usize) -> Softmax {
        let row = self.step().row(member);
        let mut sums = Softmax::new(1);
        for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
            let token = token as usize;
            let logit = f64::from(row.logit(token));
            sums.add(logit, 1.0 / f64::from(p), &self.values[token..=token]);
        }
        sums
    }
}

fn tokens(list: &List) -> Vec<u32> {
    list.indices.clone()
}

#[test]
fn rule_3_the_sample_is_drawn_from_unpicked_tokens_without_replacement() {
    let head = TestHead::new(500, 1);
    let reading = head.read(sampled(vec![Box::new(take(0..100))], 1, fixed(60)));
    let list = reading.list(0);
    assert_eq!((list.indices.len(), list.sampled), (160, 60));
    assert!(list.indices.is_sorted_by(|a, b| a < b), "each token occurs once");
    for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
        assert_eq!(p, if token < 100 { 1.0 } else { 60.0 / 400.0 });
    }
}

/// `N^` and `D^` are unbiased: their averages over all samples, which are equally likely, are the
/// sums of dense attention.
#[test]
fn rule_3_the_estimate_is_unbiased_over_every_sample_of_three_out_of_six() {
    let head = TestHead::new(8, 1);
    let mut samples: BTreeMap<Vec<u32>, Softmax> = BTreeMap::new();
    for seed in 0..2000 {
        let config = PipelineConfig { seed, ..sampled(vec![Box::new(take([2, 5]))], 1, fixed(3)) };
        let site = Site { seed, ..head.site };
        let reading = Pipeline::new(&Arc::new(config), site).unwrap();
        let reading = reading.read(&Step { site: &site, ..head.step() }).unwrap();
        let sums = head.sums(&reading.list(0), 0);
        samples.insert(tokens(&reading.list(0)), sums);
    }
    assert_eq!(samples.len(), 20, "six choose three");
    let dense = head.read(config(vec![]));
    let mut exact = head.sums(&dense.list(0), 0);
    exact.rebase(0.0);
    let (mut d, mut n) = (0.0, 0.0);
    for mut sums in samples.into_values() {
        sums.rebase(0.0);
        d += sums.denominator() / 20.0;
        n += sums.numerator()[0] / 20.0;
    }
    assert!((d / exact.denominator() - 1.0).abs() < 1e-6);
    assert!((n / exact.numerator()[0] - 1.0).abs() < 1e-6);
}

#[test]
fn rule_4_weights_are_one_for_picks_and_the_inverse_probability_for_draws() {
    let draw = || Some(Box::new(Draw { tokens: vec![1, 2], p: 0.5 }) as Box<dyn SamplerConfig>);
    let separate = |sampler| PipelineConfig {
        share: Share::Head,
        sampler,
        ..config(vec![Box::new(take([0]))])
    };
    let head = TestHead::new(100, 1);
    assert!(separate(draw()).conflicts().is_empty());
    assert_eq!(head.read(separate(draw())).list(0).probabilities, [1.0, 0.5, 0.5]);

    let with_estimator = PipelineConfig { estimator: Some(Box::new(fixed(4))), ..separate(draw()) };
    assert!(with_estimator.conflicts()[0].message.contains("no estimator"));
    let error = Pipeline::new(&Arc::new(with_estimator), head.site).unwrap_err();
    assert!(matches!(error, Error::Conflict(_)), "{error}");
    let no_estimator = separate(Some(Box::new(Uniform::DEFAULT)));
    assert_eq!(no_estimator.conflicts()[0].at, "sampler");
}

#[test]
fn rule_4_drawing_every_token_at_random_is_not_exact() {
    let all = Draw { tokens: (0..100).collect(), p: 0.5 };
    let config =
        PipelineConfig { share: Share::Head, sampler: Some(Box::new(all)), ..config(vec![]) };
    let list = TestHead::new(100, 1).read(config).list(0);
    assert_eq!((list.certificate.kind, list.certificate.held), (Kind::None, false));
    assert!(list.certificate.bar.is_none());
    assert_eq!((&list.probabilities[..], list.sampled), (&[0.5; 100][..], 100));
}

#[test]
fn rule_5_a_group_shares_the_union_of_picks_and_a_sample_of_the_largest_budget() {
    let head = TestHead::new(400, 3);
    let take_own = || Box::new(Take { per_member: 10, ..take([0, 1]) });
    let shared = head.read(config(vec![take_own()]));
    assert_eq!(shared.reads().len(), 1);
    assert_eq!(tokens(&shared.list(2)), [0, 1, 10, 11, 20, 21]);
    assert!(shared.list(0).probabilities.iter().all(|&p| p == 1.0));

    let separate = head.read(PipelineConfig { share: Share::Head, ..config(vec![take_own()]) });
    assert_eq!(separate.reads().len(), 3);
    assert_eq!(tokens(&separate.list(1)), [10, 11]);

    // If members require different budgets, the shared budget is the largest.
    let by_norm = |share| PipelineConfig {
        share,
        estimator: Some(Box::new(RequestBy::Output)),
        sampler: Some(Box::new(Uniform { base: Size::Tokens(50) })),
        ..config(vec![])
    };
    let separate = head.read(by_norm(Share::Head));
    let budgets: Vec<usize> = (0..3).map(|member| separate.list(member).budget.unwrap()).collect();
    assert!(budgets.iter().min() < budgets.iter().max(), "{budgets:?}");
    let shared = head.read(by_norm(Share::Group));
    let list = shared.list(0);
    let row_budget = |member: usize| {
        let sums = head.sums(&list, member);
        (100.0 * sums.numerator()[0] / sums.denominator()) as usize
    };
    let largest = (0..3).map(row_budget).max().unwrap();
    assert!(list.budget.unwrap().abs_diff(largest) <= 1, "{:?} {largest}", list.budget);
    assert!(list.sampled >= list.budget.unwrap());

    let draw = Box::new(Draw { tokens: vec![1], p: 0.5 });
    let refused = PipelineConfig { sampler: Some(draw), ..config(vec![]) }.conflicts();
    assert!(refused[0].help.contains("share = \"head\""));
}

#[test]
fn rule_5_a_shared_promise_has_the_weakest_kind_of_its_members() {
    let mut head = TestHead::new(400, 2);
    head.values = head.keys.iter().map(|key| key + 3.0).collect();
    let dense = head.read(config(vec![]));
    let outputs = [0, 1].map(|member| head.sums(&dense.list(0), member).output()[0]);
    let kinds = |head: &TestHead, share| {
        let reading = head.read(PipelineConfig {
            share,
            sampler: Some(Box::new(Uniform { base: Size::Tokens(300) })),
            estimator: Some(Box::new(RequestBy::ProvedAbove(f64::midpoint(
                outputs[0], outputs[1],
            )))),
            ..config(vec![])
        });
        [0, 1].map(|member| {
            let certificate = reading.list(member).certificate;
            assert_eq!(certificate.assumes.is_empty(), certificate.kind != Kind::Asymptotic);
            certificate.kind
        })
    };
    for _ in 0..2 {
        let separate = kinds(&head, Share::Head);
        assert_ne!(separate[0], separate[1]);
        assert_eq!(kinds(&head, Share::Group), [Kind::Asymptotic; 2]);
        head.queries.reverse();
    }
}

/// A selector sees only the picks of its own row.
#[test]
fn rule_5_a_row_sees_only_its_own_picks() {
    let head = TestHead::new(50, 2);
    let take_own = || Box::new(Take { per_member: 1, ..take([0]) });
    let reading = head.read(PipelineConfig {
        share: Share::Head,
        ..config(vec![take_own(), Box::new(CountPicks {})])
    });
    for member in 0..2 {
        assert_eq!(
            reading.list(member).indices.len(),
            2,
            "one pick, and another one for the count of 1"
        );
    }
}

/// Picks one token, from 40 on, for each token that the row has already picked.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CountPicks {}

impl Selector for CountPicks {
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        let count = picks.len();
        picks.take_all(40..40 + count);
    }
}

#[test]
fn rule_6_samples_are_nested_and_differ_by_step_sequence_layer_and_head() {
    let read = |site: Site, step: u32, tokens: usize| {
        let head = TestHead::new(1000, 1).with_place(site, step);
        head.read(sampled(vec![], 1, fixed(tokens))).list(0).indices.clone()
    };
    let site = TestHead::new(1000, 1).site;
    let sample = read(site, 0, 50);
    assert_eq!(read(site, 0, 50), sample, "the same site and step draw the same sample");
    let larger = read(site, 0, 300);
    assert!(
        sample.iter().all(|token| larger.contains(token)),
        "a larger sample contains a smaller one"
    );
    let shape = Shape { kv_heads: 2, query_heads: 2, ..site.shape };
    for other in [
        read(site, 1, 50),
        read(Site { sequence: 1, ..site }, 0, 50),
        read(Site { layer: 1, ..site }, 0, 50),
        read(Site { kv_head: 1, shape, ..site }, 0, 50),
    ] {
        assert_ne!(other, sample);
    }
}

#[test]
fn rule_6_query_heads_with_separate_lists_draw_different_samples() {
    let read = |group, share| {
        let config = PipelineConfig { share, ..sampled(vec![], 1, fixed(50)) };
        TestHead::new(1000, group).read(config)
    };
    let separate = read(2, Share::Head);
    assert_ne!(tokens(&separate.list(0)), tokens(&separate.list(1)));
    let (shared, separate) = (read(1, Share::Group), read(1, Share::Head));
    assert_ne!(
        tokens(&shared.list(0)),
        tokens(&separate.list(0)),
        "a shared list has random numbers of its own"
    );
}

/// Random numbers that selectors received, in order.
static STREAMS: Mutex<Vec<Stream>> = Mutex::new(Vec::new());

/// Records its random numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Recorder {}

impl Selector for Recorder {
    fn select(&self, row: &Row<'_>, _: &mut Picks) {
        STREAMS.lock().unwrap().push(row.stream());
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn feedback(&mut self, row: &Row<'_>, _: &AttentionWeights<'_>) {
        STREAMS.lock().unwrap().push(row.stream());
    }
}

#[test]
fn rule_6_each_selector_has_its_own_random_numbers_in_feedback_too() {
    let head = TestHead::new(10, 1);
    let two = config(vec![Box::new(Recorder {}), Box::new(Recorder {})]);
    let mut pipeline = Pipeline::new(&Arc::new(two), head.site).unwrap();
    let step = head.step();
    pipeline.read(&step).unwrap();
    pipeline.feedback(&step.row(0), &AttentionWeights { tokens: &[9], weights: &[1.0], sink: 0.0 });
    let stream = |purpose| Stream::new(&head.site, purpose, 0, 0);
    let want = [stream(1), stream(2), stream(1), stream(2)];
    assert_eq!(*STREAMS.lock().unwrap(), want, "purpose 0 belongs to the sampler");
}

#[test]
fn rule_7_checks_continue_until_the_sample_is_large_enough() {
    let head = TestHead::new(10_000, 1);
    let run = |base, plus, times, rounds| {
        let request = Request { plus, times, rounds, promise: true };
        let reading = head.read(sampled(vec![], base, request));
        let list = reading.list(0);
        (list.sampled, list.certificate.held, list.budget.unwrap(), list.certificate.kind)
    };
    // The base suffices.
    assert_eq!(run(128, 100, 0, 6), (128, true, 100, Kind::Asymptotic));
    // A second check at the required size finds it sufficient.
    assert_eq!(run(128, 500, 0, 6), (500, true, 500, Kind::Asymptotic));
    // Each check requires one more token, and the sample grows by at least an eighth: 128, 144,
    // 162.
    assert_eq!(run(128, 1, 1, 3), (163, false, 163, Kind::Asymptotic));
    // After a single check, the required size is drawn and not checked.
    assert_eq!(run(128, 500, 0, 1), (500, false, 500, Kind::Asymptotic));
    // No size suffices: 100, 200, 400, then a last draw of 800.
    assert_eq!(run(100, 0, 2, 3), (800, false, 800, Kind::Asymptotic));
    // If fewer than 32 tokens would remain, all are read, which is exact.
    assert_eq!(run(128, 9_969, 0, 6), (10_000, true, 9_969, Kind::Exact));
    assert_eq!(run(128, 9_968, 0, 6), (9_968, true, 9_968, Kind::Asymptotic));
    let everything = run(128, 1_000_000, 0, 1);
    assert_eq!((everything.0, everything.2), (10_000, 10_000));
    assert_eq!(run(1, 9_990, 0, 0).0, 10_000, "also with a budget computed before the draw");
    // The rule does not apply to samples of a given size.
    let reading = head.read(sampled(vec![], 1, fixed(9_990)));
    assert_eq!(reading.list(0).sampled, 9_990);
    assert!(!reading.list(0).certificate.held);
}

#[test]
fn rule_7_the_default_is_six_checks_from_128_tokens_on() {
    assert_eq!(Uniform::DEFAULT.base, Size::Tokens(128));
    let written = serde_json::from_str::<Box<dyn SamplerConfig>>("{}").unwrap();
    assert!(written.is_uniform() && written.base() == Uniform::DEFAULT.base);
    assert_eq!(RequestBy::Bound.schedule(), Schedule::Adaptive { rounds: 6 });
}

#[test]
fn an_empty_list_gets_one_sampled_token_if_the_budget_is_zero() {
    let head = TestHead::new(100, 1);
    let read = |picked: &[usize]| {
        let picked = Box::new(take(picked.iter().copied()));
        head.read(sampled(vec![picked], 1, fixed(0))).list(0)
    };
    let list = read(&[]);
    assert_eq!((list.indices.len(), list.sampled), (1, 1));
    assert!(head.sums(&list, 0).output()[0].is_finite());
    assert_eq!((tokens(&read(&[5])), read(&[5]).sampled), (vec![5], 0));
}

#[test]
fn rule_8_reading_every_token_equals_dense_attention() {
    let head = TestHead::new(300, 2);
    let dense = head.read(config(vec![]));
    let everything = [
        config(vec![Box::new(take([5])), Box::new(TakeRest {})]),
        sampled(vec![Box::new(take([5]))], 1, fixed(300)),
        sampled(vec![], 290, Request { plus: 1, times: 0, rounds: 6, promise: true }),
    ];
    for config in everything {
        let reading = head.read(config);
        let list = reading.list(0);
        assert_eq!(list.certificate.kind, Kind::Exact);
        assert!(list.certificate.held);
        assert!(list.probabilities.iter().all(|&p| p == 1.0));
        for member in 0..2 {
            assert_eq!(head.sums(&list, member), head.sums(&dense.list(0), member));
        }
    }
}

#[test]
fn rule_9_density_is_counted_for_the_kv_head_and_for_each_query_head() {
    let head = TestHead::new(100, 2);
    let take_own = || Box::new(Take { per_member: 1, ..take([0, 1, 2]) });
    let separate = head.read(PipelineConfig { share: Share::Head, ..config(vec![take_own()]) });
    let report = separate.report(0);
    assert_eq!((report.density(), report.density_of_group()), (0.03, 0.04));
    let shared = head.read(config(vec![take_own()])).report(1);
    assert_eq!((shared.density(), shared.density_of_group()), (0.04, 0.04));
    let with_base = head.read(sampled(
        vec![take_own()],
        20,
        Request { plus: 1, times: 0, rounds: 6, promise: true },
    ));
    assert_eq!(with_base.report(0).sampled, 20, "the base sample counts");
}

#[test]
fn an_empty_list_without_estimator_reads_the_newest_token() {
    let head = TestHead::new(100, 1);
    let reading = head.read(config(vec![Box::new(take([]))]));
    assert_eq!(tokens(&reading.list(0)), [99]);
    assert_eq!(reading.list(0).certificate.kind, Kind::None);
    assert!(!reading.list(0).certificate.held);
}

/// Layers with settings of their own follow them, other layers the main configuration.
#[test]
fn a_layer_reads_by_its_own_settings() {
    let head = TestHead::new(100, 1);
    let with_layers = |layers: &str| {
        let pipeline = Arc::new(config(vec![Box::new(take([3, 4]))]));
        let at = vec![serde_json::from_str(layers).unwrap()];
        let mut whole = config(vec![Box::new(take([1]))]);
        whole.layers = vec![LayerSettings { at, pipeline }];
        whole
    };
    assert_eq!(tokens(&head.read(with_layers("0")).list(0)), [3, 4], "the head is in layer 0");
    assert_eq!(tokens(&head.read(with_layers("\"1..\"")).list(0)), [1]);
    let mut dense = with_layers("\"0..4\"");
    dense.dense_layers = vec![0.into()];
    dense.layers[0].pipeline = Arc::new(PipelineConfig {
        dense_layers: dense.dense_layers.clone(),
        ..config(vec![Box::new(take([3, 4]))])
    });
    assert_eq!(head.read(dense).list(0).indices.len(), 100, "dense layers take precedence");
    let mut sparse_later = with_layers("\"1..\"");
    sparse_later.selectors.clear();
    assert!(!sparse_later.is_dense());
    assert_eq!(head.read(sparse_later).list(0).indices.len(), 100, "layer 0 is dense");
}

/// The exact accumulator, for a machine that reads every token faster than `from` rows of a list,
/// than `checked` rows whose statistics are needed, or than a scan and `scanned` such rows.
struct DenseFrom<'a> {
    exact: ExactAccumulator<'a>,
    from: usize,
    checked: usize,
    scanned: usize,
}

impl Accumulator for DenseFrom<'_> {
    fn take(&mut self, picks: &Picks) {
        self.exact.take(picks);
    }

    fn draw(&mut self, tokens: &[u32], for_use: SampleUse) {
        self.exact.draw(tokens, for_use);
    }

    fn stats(&mut self, reader: usize, residual: &Residual) -> SampleStats {
        self.exact.stats(reader, residual)
    }

    fn sample(
        &mut self,
        reader: usize,
        residual: &Residual,
        show: &mut dyn FnMut(&Sample<'_>, f64),
    ) {
        self.exact.sample(reader, residual, show);
    }

    fn dense_from(&self, work: RemainingWork) -> usize {
        match work {
            RemainingWork::Reading => self.from,
            RemainingWork::Checks => self.checked,
            RemainingWork::Scan => self.scanned,
        }
    }
}

/// The fallback depends on the number of rows to be read next, for the picks or for a draw, and
/// keeps the promise.
#[test]
fn a_list_falls_back_if_too_many_rows_are_to_be_read() {
    let head = TestHead::new(1000, 1);
    let fell_back = |picked, from, checked, rounds| {
        let request = Request { plus: 300, times: 0, rounds, promise: true };
        let config = sampled(vec![Box::new(take(0..picked))], 100, request);
        let pipeline = Pipeline::new(&Arc::new(config), head.site).unwrap();
        let step = head.step();
        let rows = step.rows();
        let exact = ExactAccumulator::new(&rows);
        let mut accumulator = DenseFrom { exact, from, checked, scanned: 9999 };
        let read = pipeline.sample(&step, &pipeline.choose(&step), 0, &mut accumulator);
        assert!(read.certificate.promise.is_some());
        assert_eq!(read.certificate.held, read.fell_back || rounds > 1);
        read.fell_back
    };
    // First 250 picks are read, then draws of 100 and of 200 tokens.
    assert!(fell_back(250, 250, 9999, 6) && !fell_back(250, 251, 9999, 6));
    assert!(fell_back(50, 9999, 200, 6) && !fell_back(50, 9999, 201, 6));
    // The first draw is checked, the second is not.
    assert!(fell_back(50, 9999, 100, 1) && !fell_back(50, 9999, 101, 1));
    assert!(fell_back(50, 200, 101, 1) && !fell_back(50, 201, 101, 1));
}

/// If the first sample is so large that reading every token is faster, there is no design of it.
#[test]
fn a_sample_that_would_be_slower_than_everything_is_not_begun() {
    let head = TestHead::new(300, 1);
    let request = Request { plus: 0, times: 0, rounds: 6, promise: true };
    let config = PipelineConfig {
        sampler: Some(Box::new(NoDraws {})),
        ..sampled(vec![Box::new(take(0..50))], 0, request)
    };
    let pipeline = Pipeline::new(&Arc::new(config), head.site).unwrap();
    let step = head.step();
    let rows = step.rows();
    let exact = ExactAccumulator::new(&rows);
    let mut accumulator = DenseFrom { exact, from: 9999, checked: 9999, scanned: 100 };
    let read = pipeline.sample(&step, &pipeline.choose(&step), 0, &mut accumulator);
    assert!(read.fell_back && read.certificate.held);
}

/// Picks token 60 for the whole group, and records a bound.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TakeForAll {}

impl Selector for TakeForAll {
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take(60);
        picks.bound_residual(9.0);
    }

    fn group_wide(&self) -> bool {
        true
    }
}

#[test]
fn group_wide_selectors_pick_for_every_member_before_and_after_other_selectors() {
    let head = TestHead::new(100, 3);
    let take_own = || Box::new(Take { per_member: 1, ..take([0]) });
    let separate = |selectors| PipelineConfig { share: Share::Head, ..config(selectors) };
    for config in [
        separate(vec![take_own(), Box::new(TakeForAll {})]),
        separate(vec![Box::new(TakeForAll {}), take_own()]),
    ] {
        let reading = head.read(config);
        for member in 0..3 {
            assert_eq!(tokens(&reading.list(member)), [member as u32, 60]);
        }
    }
}

/// Records a bound for the second member only.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct BoundSecond {}

impl Selector for BoundSecond {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        if row.member() == 1 {
            picks.bound_residual(9.0);
        }
    }
}

/// A bound holds only for the row that the selector was called with.
#[test]
fn a_bound_for_one_member_does_not_hold_for_its_group() {
    let kinds = |share, selector: Box<dyn SelectorConfig>| {
        let reading = TestHead::new(400, 2).read(PipelineConfig {
            share,
            estimator: Some(Box::new(RequestBy::Bound)),
            ..config(vec![selector])
        });
        [0, 1].map(|member| reading.list(member).certificate.kind)
    };
    for share in [Share::Group, Share::Head] {
        assert_eq!(kinds(share, Box::new(TakeForAll {})), [Kind::Asymptotic; 2]);
    }
    let separate = kinds(Share::Head, Box::new(BoundSecond {}));
    assert_eq!(separate, [Kind::Asymptotic, Kind::FiniteSample]);
}

/// One member reads a list, and another one every token.
#[test]
fn rule_9_a_group_reads_every_token_if_one_member_does() {
    let head = TestHead::new(100, 2);
    let separate = PipelineConfig { share: Share::Head, ..config(vec![Box::new(take([7]))]) };
    let pipeline = Pipeline::new(&Arc::new(separate), head.site).unwrap();
    let step = head.step();
    let list = pipeline.read(&step).unwrap().read_by(0).clone();
    let report = Reading::new(vec![list, pipeline.fall_back(&step)], 2).report(0);
    assert_eq!((report.certain, report.read_by_group), (1, 100));
}

#[test]
fn rule_9_samples_count_for_the_group() {
    let head = TestHead::new(1000, 2);
    let read = |share| {
        let config = PipelineConfig { share, ..sampled(vec![Box::new(take([0]))], 1, fixed(50)) };
        head.read(config)
    };
    assert_eq!(read(Share::Group).report(0).read_by_group, 51);
    let separate = read(Share::Head);
    let mut union = [tokens(&separate.list(0)), tokens(&separate.list(1))].concat();
    union.sort_unstable();
    union.dedup();
    assert!(union.len() > 51);
    assert_eq!(separate.report(0).read_by_group, union.len());
}
