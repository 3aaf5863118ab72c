//! Soft caps and attention sinks beside keys of the same effect, for selectors that depend on more
//! than the order of logits.

use std::iter;
use std::ops::Range;

use half::bf16;
use ndarray::{Array3, ArrayView3, s};
use vattention::backends::{Cpu, Reference};
use vattention::config::Loader;
use vattention::{Attention, Backend, FallBack, Options, Output, Shape};

use crate::common::number_generator;

const DIM: usize = 32;
const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 1, head_dim: DIM, value_dim: DIM };
const PROMPT: usize = 96;
const STEPS: usize = 4;
const CAP: f32 = 2.5;
/// Attention sinks of the query heads, each of which holds some of the attention.
const SINKS: [f32; 2] = [6.0, 4.0];

/// Selectors whose picks follow from the logits and weights of tokens.
const SELECTORS: [&str; 7] = [
    "type = 'oracle-top-p'\nmass = 0.7\nof = 'all'",
    "type = 'oracle-top-p'\nmass = 0.7\nof = 'all'\nscore = 'group'",
    "type = 'sparq'\nsize = 12\nchannels = 32\nscore = 'group'",
    "type = 'twilight'\nmass = 0.7\nof = { type = 'oracle-top-k', size = 60 }",
    "type = 'snapkv'\nsize = 12\nwindow = 4\npool = 1\npooling = 'max'",
    "type = 'h2o'\nheavy = 12\nrecent = 4",
    "type = 'tova'\nsize = 12",
];

/// Sizes of the selectors that count tokens which other selectors have picked, and of the same
/// selectors with one token more.
const ONE_MORE: [(&str, &str); 3] = [
    ("'snapkv'\nsize = 12", "'snapkv'\nsize = 13"),
    ("heavy = 12", "heavy = 13"),
    ("'tova'\nsize = 12", "'tova'\nsize = 13"),
];

/// Selector whose picks follow from the logits and from the number of tokens.
const CAPPED_ONLY: &str = "type = 'scissorhands'\nsize = 24\nrecent = 4";

/// Tokens with given logits.
#[derive(Clone)]
struct World {
    /// Logits of a token, by query head.
    logits: Vec<[f32; 2]>,
    values: Vec<[f32; DIM]>,
    prompt: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut number = number_generator(seed);
        let tokens = PROMPT + STEPS;
        let logits = (0..tokens).map(|_| [4.0 * number(), 3.0 * number()]).collect();
        let values = (0..tokens).map(|_| [(); DIM].map(|()| number())).collect();
        Self { logits, values, prompt: PROMPT }
    }

    /// Returns the world with capped logits.
    fn capped(&self) -> Self {
        let cap = |logit: f32| CAP * (logit / CAP).tanh();
        Self { logits: self.logits.iter().map(|logits| logits.map(cap)).collect(), ..self.clone() }
    }

    /// Returns the world with a first token that has the logits of the sinks and a value of 0.
    fn with_sink_token(&self) -> Self {
        Self {
            logits: iter::once(SINKS).chain(self.logits.iter().copied()).collect(),
            values: iter::once([0.0; DIM]).chain(self.values.iter().copied()).collect(),
            prompt: self.prompt + 1,
        }
    }

    /// Outputs of all steps. Query heads use channels of their own, and all queries of a head are
    /// equal.
    fn attend(&self, backend: &dyn Backend, pipeline: &str, options: &Options) -> Vec<Output> {
        let pipeline = Loader::default().parse("pipeline.toml", pipeline).unwrap();
        let options = Options { scale: Some(1.0), fall_back: FallBack::Never, ..options.clone() };
        let mut attention = backend.start(&pipeline, 0, SHAPE, &options).unwrap();
        let tokens = self.logits.len();
        // A query head has 16 channels, of which half have the first bits of a logit, so that
        // little is lost in the bf16 index of `sparq`.
        let number = |token: usize, channel: usize| {
            let whole = self.logits[token][channel % 2] / 4.0;
            let first = bf16::from_f32(whole).to_f32();
            if channel < DIM / 2 { first } else { whole - first }
        };
        let keys = Array3::from_shape_fn((1, tokens, DIM), |(_, t, c)| number(t, c));
        let values = Array3::from_shape_fn((1, tokens, DIM), |(_, t, c)| self.values[t][c]);
        let queries = |count| {
            Array3::from_shape_fn((2, count, DIM), |(h, _, c)| if c % 2 == h { 0.5 } else { 0.0 })
        };
        let append = |attention: &mut dyn Attention, tokens: Range<usize>| {
            let part = s![.., tokens, ..];
            attention.append(keys.slice(part), values.slice(part)).unwrap();
        };
        append(&mut *attention, 0..self.prompt);
        attention.observe(queries(4).view()).unwrap();
        let step = |token| {
            append(&mut *attention, token..token + 1);
            attention.attend(queries(1).view(), None).unwrap()
        };
        (self.prompt..tokens).map(step).collect()
    }
}

fn expect_equal(context: &str, with_option: &[Output], with_keys: &[Output]) {
    let near = |a: ArrayView3<'_, f32>, b: ArrayView3<'_, f32>| {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
    };
    for (step, (a, b)) in with_option.iter().zip(with_keys).enumerate() {
        let context = format!("{context}, step {step}");
        assert!(near(a.out.view(), b.out.view()), "{context}: {:?}, not {:?}", a.out, b.out);
        let sums = a.log_denominator.iter().zip(&b.log_denominator);
        for (a, b) in sums {
            assert!((a - b).abs() < 1e-4, "{context}: {a}, not {b}");
        }
    }
}

fn pipeline(selector: &str) -> String {
    format!("[[selectors]]\n{selector}")
}

/// Both backends, and some worlds.
fn for_each_case(check: impl Fn(&dyn Backend, &World)) {
    for backend in [&Reference as &dyn Backend, &Cpu::default()] {
        for seed in 1..=6 {
            check(backend, &World::new(seed));
        }
    }
}

#[test]
fn a_soft_cap_equals_keys_with_capped_logits() {
    let options = Options { soft_cap: Some(CAP), ..Options::default() };
    for_each_case(|backend, world| {
        for selector in SELECTORS.into_iter().chain([CAPPED_ONLY]) {
            let pipeline = pipeline(selector);
            let capped = world.attend(backend, &pipeline, &options);
            let expected = world.capped().attend(backend, &pipeline, &Options::default());
            expect_equal(selector, &capped, &expected);
        }
    });
}

#[test]
fn sinks_equal_a_token_that_is_always_read_and_has_no_value() {
    let options = Options { sink_logits: Some(SINKS.into()), ..Options::default() };
    for_each_case(|backend, world| {
        for selector in SELECTORS {
            let with_sinks = world.attend(backend, &pipeline(selector), &options);
            let one_more = ONE_MORE
                .iter()
                .fold(selector.to_owned(), |text, (size, more)| text.replace(size, more));
            let first = format!("[[selectors]]\ntype = 'sink'\nsize = 1\n{}", pipeline(&one_more));
            let expected = world.with_sink_token().attend(backend, &first, &Options::default());
            expect_equal(selector, &with_sinks, &expected);
        }
    });
}
