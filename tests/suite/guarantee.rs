//! The promise itself: over 2,000 samples of a row, the error of the target exceeds epsilon no more
//! often than delta allows, at a level of 1e-6 for each count.
//!
//! A cell proves something only where the budget, not the base sample, decides: there the estimator
//! is also run with a mistake in it, and the same count must find it.

use std::sync::Arc;

use crate::common::forgetful::Forgetful;
use ndarray::{Array1, Array3, s};
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use vattention::estimators::{Clt, Combine, Ratio, Terms};
use vattention::experiments::{Exact, LayerTrials, binomial, try_layer};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::selectors::OracleTopK;
use vattention::trace::TraceLayer;
use vattention::{
    FallBack, Fraction, Goal, Options, PipelineConfig, Promise, Share, Size, Target, backend,
    plugin::{Estimator, Radius, SampleStats, Score, SelectorConfig, Uniform, register, typetag},
};

const TOKENS: usize = 5000;
const TRIALS: usize = 2000;
const BASE: usize = 64;
const LEVEL: f64 = 1e-6;
const VALUE_DIM: usize = 8;

/// How the logits of a head are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Head {
    Flat,
    /// Standard deviation 1/2.
    Gaussian,
    /// Weights are log-normal with this parameter.
    LogNormal(f64),
    /// Eight tokens hold half of the attention.
    Needle,
    /// Weights are Pareto with this index.
    Pareto(f64),
}

impl Head {
    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat => 0.0,
            Self::Gaussian => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.6 + 0.3 * normal,
            Self::Needle => 0.3 * normal,
            Self::Pareto(index) => Pareto::new(1.0, index).unwrap().sample(rng).ln(),
        }
    }

    /// One KV head with two query heads, whose logits are independent of each other.
    fn layer(self) -> TraceLayer {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut keys = Array3::zeros((1, TOKENS, 2));
        let mut values = Array3::zeros((1, TOKENS, VALUE_DIM));
        for token in 0..TOKENS {
            for member in 0..2 {
                keys[[0, token, member]] = self.logit(token, &mut rng) as f32;
            }
            for j in 0..VALUE_DIM {
                let noise: f64 = StandardNormal.sample(&mut rng);
                let mean = 0.7 * f64::from(j as u8 % 3) - 0.4;
                values[[0, token, j]] = (mean + 0.5 * noise) as f32;
            }
        }
        let mut queries = Array3::zeros((2, 1, 2));
        (queries[[0, 0, 0]], queries[[1, 0, 1]]) = (1.0, 1.0);
        TraceLayer {
            queries,
            keys,
            values,
            visible: None,
            prompt: None,
            prompt_tokens: None,
            classes: None,
        }
    }
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

fn share_of_context(share: f64) -> Size {
    Size::Share(fraction(share))
}

fn exact_top() -> Box<dyn SelectorConfig> {
    Box::new(OracleTopK { size: share_of_context(0.05), score: Score::Head })
}

/// Runs an estimator after a selector, and counts by a promise.
fn run(
    layer: &TraceLayer,
    selector: Box<dyn SelectorConfig>,
    share: Share,
    estimator: Box<dyn Estimator>,
    promise: &Promise,
) -> LayerTrials {
    let pipeline = Arc::new(PipelineConfig {
        share,
        selectors: vec![selector],
        sampler: Some(Box::new(Uniform { base: Size::Tokens(BASE) })),
        estimator: Some(estimator),
        ..PipelineConfig::default()
    });
    try_layer(&pipeline, promise, layer, Some(1.0), TRIALS).unwrap()
}

fn worst(found: &LayerTrials) -> usize {
    found.heads.iter().map(|head| head.violations).max().unwrap()
}

/// Whether a count contradicts delta.
fn contradicted(violations: usize, delta: f64) -> bool {
    binomial::p_value(violations, TRIALS, delta) < LEVEL
}

/// Makes an estimator from its terms.
type Make = fn(&Promise) -> Box<dyn Estimator>;

/// Checks every cell; `mutant` is the same with a mistake, for estimators that are not so
/// conservative as to forgive it. Returns how many cells proved something.
fn check(target: Target, epsilons: [f64; 2], make: Make, mutant: Option<Make>) -> usize {
    let mut proved = 0;
    for head in [Head::Flat, Head::Gaussian, Head::LogNormal(2.0), Head::Needle] {
        let layer = head.layer();
        for epsilon in epsilons {
            for delta in [0.05, 0.1, 0.2] {
                let promise = Promise::new(target, fraction(epsilon), fraction(delta));
                for share in [Share::Group, Share::Head] {
                    let cell = format!("{head:?}, {target} within {epsilon}, {delta}, {share:?}");
                    let found = run(&layer, exact_top(), share, make(&promise), &promise);
                    let (sampled, violated) = (found.mean_sampled, worst(&found));
                    let floor = sampled < 2.0 * BASE as f64;
                    let note = if floor { " (the base sample rules)" } else { "" };
                    println!("{cell}: {violated} of {TRIALS}, {sampled:.0} sampled{note}");
                    assert!(!contradicted(violated, delta), "{cell}: {violated} violated");
                    let Some(mutant) = mutant.filter(|_| !floor) else { continue };
                    let found = run(&layer, exact_top(), share, mutant(&promise), &promise);
                    let violated = worst(&found);
                    assert!(
                        contradicted(violated, delta),
                        "{cell}: the mutant violates only {violated}"
                    );
                    proved += 1;
                }
            }
        }
    }
    proved
}

fn ratio(promise: &Promise) -> Box<dyn Estimator> {
    Box::new(Ratio::new(promise.epsilon, promise.delta))
}

/// An estimator with half of the budget that it has for variances as they are estimated.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Half(#[schemars(with = "serde_json::Value")] Box<dyn Estimator>);

#[typetag::serde(name = "half")]
impl Estimator for Half {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let estimated = SampleStats { kurtosis_e: 1.0, kurtosis_w: 1.0, ..*stats };
        self.0.radius(&estimated.at((2 * stats.b).min(stats.n_s)))
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.0.goal()
    }
}

register!(Estimator, "half", Half, "half of what another asks for");

fn half_ratio(promise: &Promise) -> Box<dyn Estimator> {
    Box::new(Half(ratio(promise)))
}

fn clt(promise: &Promise) -> Box<dyn Estimator> {
    Box::new(Clt(Terms::new(promise.target, promise.epsilon, promise.delta)))
}

fn half_clt(promise: &Promise) -> Box<dyn Estimator> {
    Box::new(Half(clt(promise)))
}

#[test]
fn ratio_keeps_its_promise_of_the_output() {
    let proved = check(Target::Sdpa, [0.02, 0.05], ratio, Some(half_ratio));
    assert!(proved >= 30, "only {proved} cells proved something");
}

#[test]
fn clt_keeps_its_promise_of_the_denominator() {
    let proved = check(Target::Denominator, [0.02, 0.05], clt, Some(half_clt));
    assert!(proved >= 12, "only {proved} cells proved something");
}

#[test]
fn clt_keeps_its_promise_of_the_numerator() {
    check(Target::Numerator, [0.05, 0.1], clt, None);
}

#[test]
fn clt_keeps_its_promise_of_the_output() {
    check(Target::Sdpa, [0.05, 0.1], clt, None);
}

/// The paper's combination keeps it too, far too well.
#[test]
fn the_papers_combination_is_conservative() {
    let layer = Head::Gaussian.layer();
    let promise = Promise::new(Target::Sdpa, fraction(0.1), fraction(0.2));
    let terms = Terms {
        combine: Combine::Paper,
        ..Terms::new(Target::Sdpa, promise.epsilon, promise.delta)
    };
    let found = run(&layer, exact_top(), Share::Head, Box::new(Clt(terms)), &promise);
    assert!(worst(&found) <= TRIALS / 100, "{} violated", worst(&found));
}

/// Violations of each query head in `trials` steps of the `cpu` backend, and the mean sample.
fn run_on_cpu(
    head: Head,
    estimator: Box<dyn Estimator>,
    promise: &Promise,
    trials: usize,
) -> (usize, f64) {
    let layer = head.layer();
    let shape = layer.shape();
    let pipeline = Arc::new(PipelineConfig {
        selectors: vec![exact_top()],
        sampler: Some(Box::new(Uniform { base: Size::Tokens(BASE) })),
        estimator: Some(estimator),
        ..PipelineConfig::default()
    });
    let options = Options { scale: Some(1.0), fall_back: FallBack::Never, ..Options::default() };
    let mut attention = backend("cpu").unwrap().start(&pipeline, 0, shape, &options).unwrap();
    attention.append(layer.keys.view(), layer.values.view()).unwrap();
    let exact = Exact::rows(&layer, &shape, 1.0, 1);
    let (mut violated, mut sampled) = ([0; 2], 0);
    // The same query again and again: each step draws a sample of its own.
    let queries = Array3::from_shape_fn((2, 100, 2), |(head, _, i)| layer.queries[[head, 0, i]]);
    for _ in 0..trials / 100 {
        let output = attention.attend(queries.view(), None).unwrap();
        for (member, exact) in exact.iter().enumerate() {
            for t in 0..100 {
                let error = if promise.target == Target::Denominator {
                    let log_d = f64::from(output.log_denominator[[member, t]]);
                    ((log_d - exact.log_denominator).exp() - 1.0).abs()
                } else {
                    let got = output.out.slice(s![member, t, ..]).mapv(f64::from);
                    norm(&(got - &exact.output)) / norm(&exact.output)
                };
                violated[member] += usize::from(error > promise.epsilon.get());
            }
        }
        sampled += output.rows.iter().map(|row| row.sampled).sum::<usize>();
    }
    (violated[0].max(violated[1]), sampled as f64 / (2 * trials) as f64)
}

fn norm(x: &Array1<f64>) -> f64 {
    x.dot(x).sqrt()
}

/// Its own sampler, statistics and sums, ten times as often.
#[test]
fn the_cpu_backend_keeps_the_promise_too() {
    let trials = 20_000;
    let (epsilon, delta) = (fraction(0.05), fraction(0.1));
    let contradicted =
        |violations: usize| binomial::p_value(violations, trials, delta.get()) < LEVEL;
    for (target, make, mutant) in
        [(Target::Sdpa, ratio as Make, half_ratio as Make), (Target::Denominator, clt, half_clt)]
    {
        let promise = Promise::new(target, epsilon, delta);
        for head in [Head::Gaussian, Head::LogNormal(2.0)] {
            let (violated, sampled) = run_on_cpu(head, make(&promise), &promise, trials);
            println!("{head:?}, {target}: {violated} of {trials}, {sampled:.0} sampled");
            assert!(!contradicted(violated), "{head:?}, {target}: {violated} violated");
            if sampled >= 2.0 * BASE as f64 {
                let (violated, _) = run_on_cpu(head, mutant(&promise), &promise, trials);
                assert!(
                    contradicted(violated),
                    "{head:?}, {target}: the mutant violates only {violated}"
                );
            }
        }
    }
}

/// Where the promise fails: heavy tokens that no selector took, and that the samples miss.
/// Measured, so that what the documentation says of it stays true.
#[test]
fn the_promise_breaks_where_heavy_tokens_are_missed() {
    let promise = Promise::new(Target::Sdpa, fraction(0.05), fraction(0.05));
    let rate = |head: Head, selector: Box<dyn SelectorConfig>| {
        let found = run(&head.layer(), selector, Share::Head, ratio(&promise), &promise);
        let rate = worst(&found) as f64 / TRIALS as f64;
        println!("{head:?}: rate {rate}, {:.0} sampled", found.mean_sampled);
        rate
    };
    let forgetful = || Box::new(Forgetful { size: share_of_context(0.05), recall: 0.9 });
    // With exact top-k even these tails are harmless.
    assert!(rate(Head::LogNormal(3.0), exact_top()) <= 0.05);
    assert!(rate(Head::Pareto(1.5), exact_top()) <= 0.05);
    // A selector that misses a tenth of the heavy tokens leaves tails that a sample cannot see.
    assert!(rate(Head::LogNormal(2.0), forgetful()) <= 0.05);
    assert!(rate(Head::Pareto(1.5), forgetful()) <= 0.05);
    assert!(rate(Head::LogNormal(3.0), forgetful()) > 0.08);
    assert!(rate(Head::Needle, forgetful()) > 0.08);
}
