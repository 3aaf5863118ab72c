//! What each mode takes for granted, and whether a promise fails where that is false: 2,000 samples
//! of a row for each cell, at a level of 1e-6 over all counts.

use std::sync::Arc;

use crate::common::forgetful::Forgetful;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{Distribution, Pareto, StandardNormal};
use rand_chacha::ChaCha8Rng;
use vattention::estimators::{Clt, Mode, Ratio, Terms};
use vattention::experiments::binomial;
use vattention::selectors::OracleTopK;
use vattention::{
    Certificate, Fraction, Kind, PipelineConfig, RowReport, Shape, Size, Target,
    engine::{Pipeline, Reading, Softmax},
    plugin::{
        Assumption, Estimator, NewTokens, Score, SelectorConfig, Site, Step, Tokens, Uniform,
    },
};

const TOKENS: usize = 5000;
const TRIALS: u32 = 2000;
const VALUE_DIM: usize = 8;
const LEVEL: f64 = 1e-6;
/// At least the number of counts.
const COUNTS: f64 = 500.0;

/// How the weights of a head are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Head {
    Flat,
    /// Logits of standard deviation 1/2.
    Gaussian,
    /// Weights are log-normal with this parameter.
    LogNormal(f64),
    /// Weights are Pareto with this index.
    Pareto(f64),
    /// Eight tokens hold half of the attention.
    Needle,
    /// 6 % of the tokens weigh the same and hold half of the attention, and top-k takes 5 %. The others
    /// of them have values of another kind.
    TwoPoint,
    /// Log-normal 1, with values of mean 0.
    Cancelling,
}

impl Head {
    fn logit(self, token: usize, rng: &mut ChaCha8Rng) -> f64 {
        let normal: f64 = StandardNormal.sample(rng);
        match self {
            Self::Flat => 0.0,
            Self::Gaussian => 0.5 * normal,
            Self::LogNormal(sigma) => sigma * normal,
            Self::Pareto(index) => Pareto::new(1.0, index).unwrap().sample(rng).ln(),
            Self::Needle if token.is_multiple_of(TOKENS / 8) => 6.6 + 0.3 * normal,
            Self::TwoPoint if token % 50 < 3 => 2.8,
            Self::Needle | Self::TwoPoint => 0.3 * normal,
            Self::Cancelling => normal,
        }
    }

    fn value(self, token: usize, j: usize, rng: &mut ChaCha8Rng) -> f64 {
        let noise: f64 = StandardNormal.sample(rng);
        let mean = match self {
            Self::Cancelling => 0.0,
            Self::TwoPoint if token % 50 < 3 && token > TOKENS * 5 / 6 => 3.0,
            _ => 0.7 * f64::from(j as u8 % 3) - 0.4,
        };
        mean + 0.5 * noise
    }
}

/// One row of one head: a query head that sees all tokens.
struct PromiseTrials {
    keys: Vec<f32>,
    values: Vec<f32>,
    exact: Softmax,
}

impl PromiseTrials {
    fn new(head: Head) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut bench = Self {
            keys: (0..TOKENS).map(|token| head.logit(token, &mut rng) as f32).collect(),
            values: Vec::new(),
            exact: Softmax::new(VALUE_DIM),
        };
        for token in 0..TOKENS {
            let value: Vec<f32> =
                (0..VALUE_DIM).map(|j| head.value(token, j, &mut rng) as f32).collect();
            let logit = f64::from(bench.keys[token]);
            bench.exact.add(logit, 1.0, &value);
            bench.values.extend(value);
        }
        bench
    }

    /// The sums of what was read.
    fn sums(&self, reading: &Reading) -> Softmax {
        let list = reading.list(0);
        let mut sums = Softmax::new(VALUE_DIM);
        for (&token, &p) in list.indices.iter().zip(&list.probabilities) {
            let token = token as usize;
            let value = &self.values[token * VALUE_DIM..][..VALUE_DIM];
            sums.add(f64::from(self.keys[token]), 1.0 / f64::from(p), value);
        }
        sums
    }

    /// The error that the promise is about.
    fn error(&self, target: Target, sums: &Softmax) -> f64 {
        let share = (sums.log_denominator() - self.exact.log_denominator()).exp();
        let (got, want) = (sums.output(), self.exact.output());
        let scale = match target {
            Target::Denominator => return (share - 1.0).abs(),
            Target::Numerator => share,
            Target::Sdpa => 1.0,
        };
        let error = norm(got.iter().zip(&want).map(|(got, want)| got * scale - want));
        error / norm(want.iter().copied())
    }

    /// Draws the samples of one cell.
    fn run(&self, cell: &Cell) -> Found {
        let config = PipelineConfig {
            selectors: vec![cell.selection.selector()],
            sampler: Some(Box::new(Uniform { base: Size::Tokens(cell.base) })),
            estimator: Some(cell.estimator()),
            ..PipelineConfig::default()
        };
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: VALUE_DIM };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let mut pipeline = Pipeline::new(&Arc::new(config), site).unwrap();
        let keys = Tokens::new(&self.keys, TOKENS, 1);
        let values = Tokens::new(&self.values, TOKENS, VALUE_DIM);
        pipeline.append(&NewTokens { first: 0, keys, values, classes: None }).unwrap();
        let step = Step { site: &site, queries: &[1.0], keys, values, visible: TOKENS, step: 0 };
        let choice = pipeline.choose(&step);
        let mut found = Found { sampled: 0, violated: 0, claims: 0, wrong: 0, kind: Kind::Exact };
        for sequence in 0..TRIALS {
            pipeline.set_sequence(sequence);
            let reading = pipeline.complete(&step, &choice);
            let violated = self.error(cell.target, &self.sums(&reading)) > cell.epsilon;
            found.add(cell, &reading.report(0), violated);
        }
        found
    }
}

fn norm(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}

fn fraction(x: f64) -> Fraction {
    Fraction::try_from(x).unwrap()
}

/// Which tokens are read for certain: 5 % of all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Selection {
    /// The heaviest.
    Exact,
    /// The heaviest of nine tenths.
    Forgetful,
}

impl Selection {
    fn selector(self) -> Box<dyn SelectorConfig> {
        let size = Size::Share(fraction(0.05));
        match self {
            Self::Exact => Box::new(OracleTopK { size, score: Score::Head }),
            Self::Forgetful => Box::new(Forgetful { size, recall: 0.9 }),
        }
    }
}

/// A row, what is read of it, and a promise.
#[derive(Clone, Copy, Debug)]
struct Cell {
    head: Head,
    selection: Selection,
    base: usize,
    target: Target,
    epsilon: f64,
    delta: f64,
    mode: Mode,
}

impl Cell {
    /// `ratio` for the output, `clt` for the rest.
    fn estimator(&self) -> Box<dyn Estimator> {
        let (epsilon, delta) = (fraction(self.epsilon), fraction(self.delta));
        if self.target == Target::Sdpa {
            let mut ratio = Ratio::new(epsilon, delta);
            ratio.mode = self.mode;
            return Box::new(ratio);
        }
        let terms = Terms::new(self.target, epsilon, delta);
        Box::new(Clt(Terms { mode: self.mode, ..terms }))
    }

    /// Whether tokens may be left that are much heavier than what is drawn.
    fn hides_heavy_tokens(&self) -> bool {
        match self.head {
            Head::TwoPoint => true,
            Head::Flat | Head::Gaussian | Head::LogNormal(1.0) | Head::Cancelling => false,
            _ => self.selection == Selection::Forgetful,
        }
    }
}

/// What the samples of one cell came to.
#[derive(Debug)]
struct Found {
    sampled: usize,
    /// Samples in which the promise was violated.
    violated: u32,
    /// Samples whose certificate claims the promise, assuming nothing that is false there.
    claims: u32,
    /// Claims that were false.
    wrong: u32,
    /// The weakest of all.
    kind: Kind,
}

impl Found {
    fn add(&mut self, cell: &Cell, report: &RowReport, violated: bool) {
        let Certificate { held, assumes, kind, .. } = report.certificate;
        let unfounded = assumes.contains(Assumption::TailSeen) && cell.hides_heavy_tokens();
        let claims = held && !unfounded;
        self.sampled += report.sampled;
        self.violated += u32::from(violated);
        self.claims += u32::from(claims);
        self.wrong += u32::from(claims && violated);
        self.kind = self.kind.min(kind);
    }
}

impl Found {
    /// No claim is false more often than delta; none at all where the promise is violated.
    fn check(&self, cell: &Cell) {
        let Cell { head, selection, base, target, epsilon, delta, mode } = cell;
        let rate = |count: u32| f64::from(count) / f64::from(TRIALS);
        println!(
            "{head:?}, {selection:?}, base {base}, {target} {epsilon} {delta}, {mode:?}: {} tokens, {:.4} \
             violated, {:.3} claimed",
            self.sampled / TRIALS as usize,
            rate(self.violated),
            rate(self.claims),
        );
        assert!(!contradicts(self.wrong, *delta), "{cell:?}: {self:?}");
        if contradicts(self.violated, *delta) {
            assert_eq!(self.wrong, 0, "{cell:?}: {self:?}");
        }
        if *mode == Mode::Rigorous {
            assert!(self.kind >= Kind::FiniteSample && self.violated == self.wrong, "{cell:?}");
        }
    }
}

/// Whether so many failures contradict delta.
fn contradicts(count: u32, delta: f64) -> bool {
    binomial::p_value(count as usize, TRIALS as usize, delta) < LEVEL / COUNTS
}

/// Base, epsilon and delta.
const TERMS: [(usize, f64, f64); 3] = [(50, 0.1, 0.1), (128, 0.05, 0.05), (800, 0.1, 0.1)];

/// Checks a head for one target after both selections, in every mode that can be.
fn check(head: Head, target: Target, terms: &[(usize, f64, f64)]) -> Vec<(Cell, Found)> {
    let bench = PromiseTrials::new(head);
    let mut all = Vec::new();
    for selection in [Selection::Exact, Selection::Forgetful] {
        for &(base, epsilon, delta) in terms {
            for mode in [Mode::Default, Mode::Strict, Mode::Rigorous] {
                if mode == Mode::Rigorous && selection == Selection::Forgetful {
                    continue; // It proves no bound, so the pipeline is refused.
                }
                let cell = Cell { head, selection, base, target, epsilon, delta, mode };
                let found = bench.run(&cell);
                found.check(&cell);
                all.push((cell, found));
            }
        }
    }
    all
}

/// Cells of one selection and mode in which the promise is violated.
fn violated(all: &[(Cell, Found)], selection: Selection, mode: Mode) -> usize {
    let of = |cell: &Cell| cell.selection == selection && cell.mode == mode;
    let cells = all.iter().filter(|(cell, _)| of(cell));
    cells.filter(|(cell, found)| contradicts(found.violated, cell.delta)).count()
}

/// Tails that a sample sees.
#[test]
fn no_mode_breaks_its_promise_where_nothing_is_hidden() {
    for head in [Head::Flat, Head::Gaussian, Head::LogNormal(1.0)] {
        check(head, Target::Sdpa, &TERMS);
    }
    check(Head::Cancelling, Target::Sdpa, &TERMS[..1]);
}

/// A selector that misses heavy tokens violates the default and the strict mode, and both say so.
#[test]
fn a_certificate_names_the_tail_where_heavy_tokens_are_missed() {
    for head in [Head::LogNormal(2.0), Head::LogNormal(3.0), Head::Pareto(1.5)] {
        check(head, Target::Sdpa, &TERMS);
    }
    let needle = check(Head::Needle, Target::Sdpa, &TERMS);
    for mode in [Mode::Default, Mode::Strict] {
        assert_eq!(violated(&needle, Selection::Exact, mode), 0);
        assert!(violated(&needle, Selection::Forgetful, mode) > 0, "{mode:?} keeps it");
    }
}

/// Exact top-k that takes too few of many equal tokens: a proved bound mends what the sample misses.
#[test]
fn strict_counts_what_was_missed_where_a_bound_is_proved() {
    let found = check(Head::TwoPoint, Target::Sdpa, &TERMS);
    assert!(violated(&found, Selection::Exact, Mode::Default) > 0, "the default keeps it");
    for (cell, found) in found {
        if cell.selection == Selection::Exact && cell.mode == Mode::Strict {
            assert_eq!(found.claims, TRIALS, "{cell:?}");
        }
    }
}

/// The other targets, by `clt`.
#[test]
fn the_parts_keep_their_promises_in_every_mode() {
    for head in [Head::Gaussian, Head::LogNormal(2.0), Head::Needle, Head::TwoPoint] {
        for target in [Target::Denominator, Target::Numerator] {
            check(head, target, &TERMS[..1]);
        }
    }
}
