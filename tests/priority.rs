//! The promise of `priority-sample`: over 2,000 samples of a row, the output's error exceeds epsilon
//! no more often than delta allows, at a level of 1e-6 for each count; and tokens are drawn as often
//! as they are said to be.
//!
//! The sampler is also run with mistakes, which the same count must find.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ndarray::{Array3, ArrayView1};
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use vattention::estimators::Mode;
use vattention::eval::{Exact, Layer, binomial};
use vattention::selectors::{PrioritySample, Promised, Sink, Window};
use vattention::{
    Fraction, Kind, NewTokens, Picks, Pipeline, PipelineConfig, Promise, Reading, Row, Selector,
    SelectorConfig, Share, Site, Size, Softmax, Step, Tokens, typetag,
};

const TOKENS: usize = 3000;
const TRIALS: u32 = 2000;
const BASE: usize = 64;
const LEVEL: f64 = 1e-6;
const VALUE_DIM: usize = 8;

/// How the logits of a head are spread, and whether its values cancel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Head {
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
}

const HEADS: [Head; 8] = [
    Head::Flat,
    Head::Gaussian,
    Head::Cancelling,
    Head::LogNormal(1.0),
    Head::LogNormal(2.0),
    Head::LogNormal(3.0),
    Head::Needle,
    Head::Pareto(1.5),
];

impl Head {
    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat => 0.0,
            Self::Gaussian | Self::Cancelling => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.1 + 0.3 * normal,
            Self::Needle => 0.3 * normal,
            Self::Pareto(index) => Pareto::new(1.0, index).unwrap().sample(rng).ln(),
        }
    }

    /// One KV head with two query heads, whose logits are independent of each other.
    fn layer(self) -> Layer {
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
        Layer { queries, keys, values, visible: None, prompt: None }
    }
}

fn fraction(x: f64) -> Fraction {
    x.try_into().unwrap()
}

fn promised(mode: Mode, epsilon: f64, delta: f64) -> Promised {
    let base = Size::Tokens(BASE);
    Promised { mode, base, ..Promised::new(fraction(epsilon), fraction(delta)) }
}

/// What many samples of a head came to.
#[derive(Clone, Copy, Debug, Default)]
struct Trials {
    /// Of the worse query head.
    broken: usize,
    /// Tokens drawn or taken by the sampler, on average.
    sampled: f64,
    /// Samples that the last look did not find large enough.
    unheld: usize,
    /// Rows that read everything.
    exact: usize,
}

/// One head, ready to be read.
struct Bench {
    layer: Layer,
    exact: Vec<Exact>,
    pipeline: Pipeline,
}

impl Bench {
    /// A few sinks, a window, and a sampler.
    fn new(head: Head, sampler: Box<dyn SelectorConfig>) -> Self {
        let layer = head.layer();
        let shape = layer.shape();
        let size = Size::Tokens(8);
        let config = Arc::new(PipelineConfig {
            share: Share::Head,
            selectors: vec![Box::new(Sink { size }), Box::new(Window { size }), sampler],
            ..PipelineConfig::default()
        });
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
    fn read<T>(&self, sequence: u32, mut show: impl FnMut(&Step<'_>, &Reading) -> T) -> T {
        let mut pipeline = self.pipeline.clone();
        pipeline.set_sequence(sequence);
        let [keys, values] = tokens(&self.layer);
        let queries = self.layer.queries.as_slice().unwrap();
        let step = Step { site: pipeline.site(), queries, keys, values, visible: TOKENS, step: 0 };
        show(&step, &pipeline.read(&step))
    }

    fn run(&self, promise: &Promise) -> Trials {
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

fn tokens(layer: &Layer) -> [Tokens<'_>; 2] {
    [&layer.keys, &layer.values].map(|numbers| {
        let (_, len, dim) = numbers.dim();
        Tokens::new(numbers.as_slice().unwrap(), len, dim)
    })
}

fn is_kept(
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

fn contradicted(found: &Trials, delta: f64) -> bool {
    binomial::p_value(found.broken, TRIALS as usize, delta) < LEVEL
}

/// Runs a case for each head, in parallel.
fn for_each_head(case: impl Fn(Head) + Sync) {
    let (even, odd): (Vec<_>, Vec<_>) = HEADS.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    std::thread::scope(|scope| {
        for heads in [even, odd] {
            let case = &case;
            scope.spawn(move || heads.into_iter().for_each(|(_, &head)| case(head)));
        }
    });
}

/// A sampler that is wrong about what it keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claiming {
    sampler: PrioritySample,
    /// What it claims, as the terms of a sampler that would keep it.
    claims: PrioritySample,
    /// Whether what it draws weighs 1 over its probability.
    weighs: bool,
}

#[typetag::serde(name = "claiming")]
impl SelectorConfig for Claiming {
    fn build(&self, site: &Site) -> vattention::Result<Box<dyn Selector>> {
        Ok(Box::new(ClaimingWorker { sampler: self.sampler.build(site)?, weighs: self.weighs }))
    }

    fn randomized(&self) -> bool {
        true
    }

    fn promise(&self) -> Option<Promise> {
        self.claims.promise()
    }
}

#[derive(Clone)]
struct ClaimingWorker {
    sampler: Box<dyn Selector>,
    weighs: bool,
}

impl Selector for ClaimingWorker {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.sampler.append(new);
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        if self.weighs {
            return self.sampler.select(row, picks);
        }
        let mut drawn = picks.clone();
        self.sampler.select(row, &mut drawn);
        picks.union(&drawn);
    }
}

/// One that judges its error by half of its variance.
fn half_the_variance(terms: &Promised) -> Box<dyn SelectorConfig> {
    let epsilon = fraction(terms.epsilon.get() * std::f64::consts::SQRT_2);
    let sampler = PrioritySample::new(Promised { epsilon, ..terms.clone() });
    Box::new(Claiming { sampler, claims: PrioritySample::new(terms.clone()), weighs: true })
}

/// One that forgets with which probability it drew.
fn without_weights(terms: &Promised) -> Box<dyn SelectorConfig> {
    let sampler = PrioritySample::new(terms.clone());
    Box::new(Claiming { claims: sampler.clone(), sampler, weighs: false })
}

#[test]
fn the_asymptotic_modes_keep_their_promise() {
    let proved = std::sync::atomic::AtomicUsize::new(0);
    for_each_head(|head| {
        for (mode, epsilon, delta) in
            [(Mode::Default, 0.1, 0.2), (Mode::Default, 0.05, 0.05), (Mode::Strict, 0.05, 0.1)]
        {
            let terms = promised(mode, epsilon, delta);
            let promise = terms.promise();
            let run = |sampler| Bench::new(head, sampler).run(&promise);
            let found = run(Box::new(PrioritySample::new(terms.clone())));
            let cell = format!("{head:?}, {mode:?}, {epsilon}, {delta}: {found:?}");
            println!("{cell}");
            assert!(!contradicted(&found, delta), "{cell}");
            assert!(found.unheld <= TRIALS as usize / 20, "{cell}");
            if mode == Mode::Strict || delta < 0.2 || found.sampled < 2.0 * BASE as f64 {
                continue;
            }
            let mut mutants = vec![half_the_variance(&terms)];
            // Where weights vary, and few tokens are certain.
            if [Head::Gaussian, Head::LogNormal(1.0)].contains(&head) {
                mutants.push(without_weights(&terms));
            }
            for mutant in mutants {
                let name = format!("{mutant:?}");
                let broken = run(mutant).broken;
                let p_value = binomial::p_value(broken, TRIALS as usize, delta);
                assert!(p_value < LEVEL, "{cell}: {name} breaks only {broken}");
                proved.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    let proved = proved.into_inner();
    assert!(proved >= 6, "only {proved} cells proved something");
}

/// Nothing is assumed, nor need be: every row says that all was proved, and it reads less than all.
#[test]
fn the_rigorous_mode_keeps_its_promise() {
    let sampled = std::sync::atomic::AtomicUsize::new(0);
    for_each_head(|head| {
        let terms = promised(Mode::Rigorous, 0.2, 0.1);
        let promise = terms.promise();
        let bench = Bench::new(head, Box::new(PrioritySample::new(terms)));
        let found = bench.run(&promise);
        println!("{head:?}: {found:?}");
        assert!(!contradicted(&found, 0.1) && found.unheld == 0, "{head:?}: {found:?}");
        bench.read(0, |_, reading| {
            let certificate = reading.report(0).certificate;
            assert!(certificate.kind >= Kind::FiniteSample && certificate.assumes.is_empty());
        });
        sampled.fetch_add(usize::from(found.exact == 0), std::sync::atomic::Ordering::Relaxed);
    });
    assert!(sampled.into_inner() >= 6, "too many heads are read as a whole");
}

/// At one threshold, tokens are drawn as often as their probabilities say, and pairs of neighbours
/// as if independently.
#[test]
fn tokens_are_drawn_with_the_probability_that_is_told() {
    let terms = Promised { rounds: std::num::NonZeroU8::MIN, ..promised(Mode::Default, 0.9, 0.5) };
    let bench = Bench::new(Head::Gaussian, Box::new(PrioritySample::new(terms)));
    let (mut drawn, mut pairs) = (vec![0; TOKENS], vec![0; TOKENS]);
    let mut told = vec![0.0; TOKENS];
    for sequence in 0..TRIALS {
        bench.read(sequence, |_, reading| {
            let list = reading.list(1);
            let mut last = usize::MAX - 1;
            for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
                let token = token as usize;
                drawn[token] += 1;
                told[token] = f64::from(p);
                pairs[token] += usize::from(last + 1 == token);
                last = token;
            }
        });
    }
    let trials = TRIALS as usize;
    let level = LEVEL / TOKENS as f64;
    let extreme = |count: usize, p: f64| {
        let more = binomial::p_value(count, trials, p);
        let less = binomial::p_value(trials - count, trials, 1.0 - p);
        more.min(less) < level
    };
    for token in 9..TOKENS - 9 {
        let p = told[token];
        assert!(!extreme(drawn[token], p), "token {token}: {} for {p}", drawn[token]);
        assert!(!extreme(pairs[token], p * told[token - 1]), "tokens to {token}: {}", pairs[token]);
    }
    let expected: f64 = told[8..TOKENS - 8].iter().sum();
    assert!((expected / BASE as f64 - 1.0).abs() < 0.05, "{expected} are expected");
}
