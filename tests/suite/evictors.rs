//! Selectors that learn from attention, over many steps on real backends.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common;
use ndarray::{Array3, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{StandardNormal, Uniform};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use vattention::config::Loader;
use vattention::{
    Attention, FallBack, Options, Output, PipelineConfig, Shape, available_backends, backend,
};

/// Shape whose softmax scale is no power of two, so that backends round logits differently.
const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 8 };
const STEPS: usize = 36;

fn pipeline(toml: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("test.toml", toml).unwrap()
}

/// A prompt, and new tokens and a query for each step.
#[derive(Clone)]
struct Decoding {
    prompt: usize,
    /// Number of the prompt's last queries that selectors observe.
    observed: usize,
    /// Number of new tokens before each step.
    new: usize,
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
    seed: u64,
}

/// Prints the values that determine the decoding.
impl std::fmt::Debug for Decoding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { prompt, observed, new, seed, .. } = self;
        write!(f, "Decoding::new({prompt}, {observed}, {new}, {seed}, false)")
    }
}

impl Decoding {
    fn new(prompt: usize, observed: usize, new: usize, seed: u64, integers: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut make = |heads, rows, dim| {
            if integers {
                let numbers = Uniform::new_inclusive(-2_i8, 2).unwrap();
                Array3::random_using((heads, rows, dim), numbers, &mut rng).mapv(f32::from)
            } else {
                Array3::random_using((heads, rows, dim), StandardNormal, &mut rng)
            }
        };
        let tokens = prompt + new * STEPS;
        Self {
            prompt,
            observed,
            new,
            seed,
            keys: make(SHAPE.kv_heads, tokens, SHAPE.head_dim),
            values: make(SHAPE.kv_heads, tokens, SHAPE.value_dim),
            queries: make(SHAPE.query_heads, observed + STEPS, SHAPE.head_dim),
        }
    }

    /// Number of tokens at a step.
    fn tokens(&self, step: usize) -> usize {
        self.prompt + self.new * (step + 1)
    }

    fn append(&self, attention: &mut dyn Attention, tokens: std::ops::Range<usize>) {
        let (keys, values) = (&self.keys, &self.values);
        let [keys, values] = [keys, values].map(|rows| rows.slice(s![.., tokens.clone(), ..]));
        common::append(attention, keys, values).unwrap();
    }

    fn start(&self, name: &str, pipeline: &Arc<PipelineConfig>) -> Box<dyn Attention> {
        let options =
            Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
        self.start_with(name, pipeline, &options)
    }

    fn start_with(
        &self,
        name: &str,
        pipeline: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Box<dyn Attention> {
        let mut attention = backend(name).unwrap().start(pipeline, 0, SHAPE, options).unwrap();
        self.append(&mut *attention, 0..self.prompt);
        if self.observed > 0 {
            attention.observe(self.queries.slice(s![.., ..self.observed, ..])).unwrap();
        }
        attention
    }

    fn step(&self, attention: &mut dyn Attention, step: usize) -> Output {
        self.append(attention, self.tokens(step) - self.new..self.tokens(step));
        let query = self.observed + step;
        attention.attend(self.queries.slice(s![.., query..=query, ..]), None).unwrap()
    }

    fn run(&self, name: &str, pipeline: &Arc<PipelineConfig>) -> Vec<Output> {
        let mut attention = self.start(name, pipeline);
        (0..STEPS).map(|step| self.step(&mut *attention, step)).collect()
    }
}

fn decodings() -> impl Strategy<Value = Decoding> {
    (1_usize..150, 0_usize..8, 1_usize..4, 0_u64..1000).prop_map(|(prompt, observed, new, seed)| {
        Decoding::new(prompt, observed.min(prompt), new, seed, false)
    })
}

/// Tokens that a query head read with probability 1.
fn certain(output: &Output, head: usize) -> BTreeSet<usize> {
    let (tokens, probabilities) = output.selection.as_ref().unwrap().row(head);
    let certain = tokens.iter().zip(probabilities).filter(|&(_, &p)| p == 1.0);
    certain.map(|(&token, _)| token as usize).collect()
}

/// Asserts that a token that is not read at a step is not read at later steps.
fn check_evicted_stay_evicted(outputs: &[Output], head: usize, tokens: impl Fn(usize) -> usize) {
    let mut evicted = BTreeSet::new();
    for (step, output) in outputs.iter().enumerate() {
        let picked = certain(output, head);
        assert!(picked.is_disjoint(&evicted), "step {step}: {:?}", picked.intersection(&evicted));
        evicted.extend((0..tokens(step)).filter(|token| !picked.contains(token)));
    }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() }
}

/// `trunc(share · tokens)`, at least 1.
fn share(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64) as usize).max(1)
}

proptest! {
    #![proptest_config(cases(24))]
    /// After each step, at most the share `heavy + recent` of all tokens is live, recent tokens
    /// included. The query heads of a group read the same tokens.
    #[test]
    fn h2o_keeps_its_capacity(
        decoding in decodings(),
        name in prop::sample::select(vec!["cpu", "reference"]),
    ) {
        let pipeline = pipeline("[[selectors]]\ntype = \"h2o\"\nheavy = 0.2\nrecent = 0.1\n");
        let outputs = decoding.run(name, &pipeline);
        for head in 0..SHAPE.query_heads {
            let capacity = |tokens: usize| share(0.2, tokens) + share(0.1, tokens);
            let Decoding { prompt, observed, .. } = decoding;
            let first = if observed > 0 { capacity(prompt) } else { prompt };
            let mut live = prompt.min(first);
            for (step, output) in outputs.iter().enumerate() {
                let (tokens, picked) = (decoding.tokens(step), certain(output, head));
                prop_assert_eq!(picked.len(), live + decoding.new);
                live = picked.len().min(capacity(tokens));
                let recent = tokens - share(0.1, tokens)..tokens;
                prop_assert!(recent.into_iter().all(|token| picked.contains(&token)));
                prop_assert_eq!(picked, certain(output, head / 2 * 2));
            }
            check_evicted_stay_evicted(&outputs, head, |step| decoding.tokens(step));
        }
    }

    /// All steps read the same tokens of the prompt, and all later tokens.
    #[test]
    fn snapkv_keeps_all_tokens_after_the_prompt(decoding in decodings(), size in 1_usize..60) {
        let pipeline =
            pipeline(&format!("[[selectors]]\ntype = \"snapkv\"\nsize = {size}\nwindow = 4\n"));
        for name in ["cpu", "reference"] {
            let outputs = decoding.run(name, &pipeline);
            for head in 0..SHAPE.query_heads {
                let first = certain(&outputs[0], head);
                let kept = first.iter().filter(|&&token| token < decoding.prompt).count();
                let Decoding { prompt, observed, .. } = decoding;
                let want = if observed > 0 { size.min(prompt) } else { prompt };
                prop_assert_eq!(kept, want);
                for (step, output) in outputs.iter().enumerate() {
                    let mut want = first.clone();
                    want.extend(decoding.prompt..decoding.tokens(step));
                    prop_assert_eq!(certain(output, head), want);
                }
            }
        }
    }

    /// A fork reads the same tokens as its original, and a fork with other queries has no effect on
    /// them.
    #[test]
    fn forks_learn_independently(
        decoding in decodings(), forked in 0..STEPS, which in 0_usize..13,
    ) {
        let toml = [
            "type = \"h2o\"\nheavy = 9\nrecent = 5",
            "type = \"snapkv\"\nsize = 20\nwindow = 4",
            "type = \"scissorhands\"\nsize = 20\nrecent = 4\nhistory = 9",
            "type = \"fastgen\"\nrecover = 0.4\nfrequent = 0.1\nlocal = 0.1",
            "type = \"inf-llm\"\nsize = 12\nblock = 5\nrepresentatives = 2\nwindow = 30",
            "type = \"squeezed-attention\"\nsize = 12\nclusters = 0.2\nwindow = 9",
            "type = \"tactic\"\nmass = 0.5\ncluster = 5",
            "type = \"retrieval-attention\"\nsize = 12\nneighbours = 5",
            "type = \"tova\"\nsize = 14",
            "type = \"prompt-eviction\"\nscore = \"lag\"\nsize = 20\npartition = 8",
            "type = \"prompt-eviction\"\nscore = \"expected-attention\"\nsize = 20",
            "type = \"cluster-kv\"\nsize = 12\ncluster = 5\nblock = 3",
            "type = \"reuse\"\nevery = 3\nof = { type = \"oracle-top-k\", size = 9 }",
        ][which];
        let pipeline = pipeline(&format!("[[selectors]]\n{toml}\n"));
        let outputs = decoding.run("cpu", &pipeline);
        let mut original = decoding.start("cpu", &pipeline);
        (0..forked).for_each(|step| drop(decoding.step(&mut *original, step)));
        let mut same = original.fork(None).unwrap();
        let mut other = original.fork(None).unwrap();
        let queries = decoding.queries.mapv(|x| -2.0 * x);
        let with_other_queries = Decoding { queries, ..decoding.clone() };
        (forked..STEPS).for_each(|step| drop(with_other_queries.step(&mut *other, step)));
        for (step, output) in outputs.iter().enumerate().skip(forked) {
            prop_assert_eq!(&decoding.step(&mut *same, step).selection, &output.selection);
            prop_assert_eq!(&decoding.step(&mut *original, step).out, &output.out);
        }
    }

    /// With a capacity for all tokens, a selector equals dense attention.
    #[test]
    fn a_capacity_for_all_tokens_is_dense_attention(decoding in decodings()) {
        let dense = decoding.run("cpu", &pipeline(""));
        for toml in [
            "type = \"h2o\"\nheavy = 200\nrecent = 200",
            "type = \"snapkv\"\nsize = 400",
            "type = \"inf-llm\"\nsize = 400",
            "type = \"tova\"\nsize = 400",
            "type = \"prompt-eviction\"\nscore = \"key-norm\"\nsize = 400",
            "type = \"cluster-kv\"\nsize = 400",
            "type = \"reuse\"\nevery = 3\nof = { type = \"oracle-top-k\", size = 400 }",
            "type = \"squeezed-attention\"\nsize = 400\nclusters = 0.2\nwindow = 9",
        ] {
            let outputs = decoding.run("cpu", &pipeline(&format!("[[selectors]]\n{toml}\n")));
            for (output, dense) in outputs.iter().zip(&dense) {
                prop_assert_eq!(&output.out, &dense.out);
            }
        }
    }

    /// A sample after an evicting selector draws evicted tokens, and does not change the eviction.
    #[test]
    fn a_sample_draws_evicted_tokens(decoding in decodings()) {
        let h2o = "[[selectors]]\ntype = \"h2o\"\nheavy = 0.1\nrecent = 0.1\n";
        let alone = decoding.run("cpu", &pipeline(h2o));
        let estimator = "[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 0.3\n";
        let sampled = decoding.run("cpu", &pipeline(&format!("{h2o}{estimator}")));
        let last = STEPS - 1;
        for head in 0..SHAPE.query_heads {
            for (step, (alone, sampled)) in alone.iter().zip(&sampled).enumerate() {
                // If few tokens are not picked, all tokens are read.
                if sampled.rows[head].density() < 1.0 {
                    prop_assert_eq!(certain(alone, head), certain(sampled, head), "step {}", step);
                }
            }
            let row = &sampled[last].rows[head];
            if row.density() < 1.0 {
                prop_assert_eq!(row.sampled, share(0.3, decoding.tokens(last)));
            }
        }
    }
}

/// On exact logits, all backends evict and pick the same tokens at each step.
#[test]
fn backends_learn_the_same_from_small_integers() {
    for toml in [
        "type = \"h2o\"\nheavy = 0.1\nrecent = 0.1",
        "type = \"snapkv\"\nsize = 0.2\nwindow = 4",
        "type = \"scissorhands\"\nsize = 0.2\nrecent = 4\nhistory = 9",
        "type = \"fastgen\"\nrecover = 0.05",
        "type = \"fastgen\"\nrecover = 0.25",
        "type = \"fastgen\"\nrecover = 0.5\nfrequent = 0.2\nlocal = 0.2",
        "type = \"fastgen\"\nrecover = 0.999",
        "type = \"inf-llm\"\nsize = 0.1\nblock = 16\nrepresentatives = 2\nwindow = 300",
        "type = \"squeezed-attention\"\nsize = 0.1\nwindow = 9\n\
         coarse = { size = 0.3, clusters = 7 }",
        "type = \"squeezed-attention\"\nthreshold = 0.002\nwindow = 9",
        "type = \"tactic\"\nmass = 0.7\ncluster = 9",
        "type = \"retrieval-attention\"\nsize = 0.1\nneighbours = 20",
        "type = \"tova\"\nsize = 0.2",
        "type = \"prompt-eviction\"\nscore = \"key-difference\"\nsize = 0.1",
        "type = \"prompt-eviction\"\nscore = \"lag\"\nsize = 0.1\npartition = 32",
        "type = \"prompt-eviction\"\nscore = \"expected-attention\"\nsize = 0.1",
        "type = \"cluster-kv\"\nsize = 0.1\ncluster = 9",
        "type = \"reuse\"\nevery = 2\nof = { type = \"oracle-top-k\", size = 0.1 }",
    ] {
        let pipeline = pipeline(&format!("[[selectors]]\n{toml}\n"));
        for seed in 0..12 {
            let decoding = Decoding::new(600, [0, 6][seed as usize % 2], 2, seed, true);
            let expected = decoding.run("reference", &pipeline);
            for backend in available_backends() {
                let outputs = decoding.run(backend.name(), &pipeline);
                for (step, (ours, theirs)) in outputs.iter().zip(&expected).enumerate() {
                    let place = format!("{} {toml}, seed {seed}, step {step}", backend.name());
                    assert_eq!(ours.selection, theirs.selection, "{place}");
                }
            }
        }
    }
}

/// Feedback has an effect: with other queries, other tokens remain.
#[test]
fn live_tokens_depend_on_the_queries() {
    let decoding = Decoding::new(200, 0, 1, 3, false);
    let other = Decoding { queries: decoding.queries.mapv(|x| -x), ..decoding.clone() };
    for toml in [
        "type = \"h2o\"\nheavy = 9\nrecent = 5",
        "type = \"inf-llm\"\nsize = 12\nblock = 5\nrepresentatives = 2",
    ] {
        let pipeline = pipeline(&format!("[[selectors]]\n{toml}\n"));
        let last = |decoding: &Decoding| decoding.run("cpu", &pipeline).pop().unwrap().selection;
        assert_ne!(last(&decoding), last(&other), "{toml}");
    }
}

/// Selectors that evict most tokens, so that many pages have no live token even if attention is
/// random.
const EVICTING: [&str; 8] = [
    "type = \"h2o\"\nheavy = 0.02\nrecent = 0.1",
    "type = \"fastgen\"\nrecover = 0.02",
    "type = \"fastgen\"\nrecover = 0.1\nfrequent = 0.02\nlocal = 0.1",
    "type = \"twilight\"\nmass = 0.8\n\
     of = { type = \"fastgen\", recover = 0.1, frequent = 0.02, local = 0.1 }",
    "type = \"snapkv\"\nsize = 0.05\nwindow = 4",
    "type = \"sink\"\nsize = 4\n[[selectors]]\ntype = \"window\"\nsize = 32",
    "type = \"window\"\nsize = 0.1",
    "type = \"twilight\"\nmass = 0.8\nof = { type = \"snapkv\", size = 0.05, window = 4 }",
];

fn freeing() -> Options {
    // Fallback to dense steps is allowed here, but freed rows must not be read.
    Options { return_selection: true, free_evicted: true, ..Options::default() }
}

/// Freeing the rows of evicted tokens reduces memory and does not change any bit of the results, in
/// forks and after another prompt too.
#[test]
fn freeing_evicted_tokens_changes_no_result() {
    for toml in EVICTING {
        let pipeline = pipeline(&format!("[[selectors]]\n{toml}\n"));
        for (seed, name) in [(0, "cpu"), (1, "cpu"), (2, "reference")] {
            let decoding = Decoding::new(700, 6, 2, seed, false);
            let mut holding = decoding.start(name, &pipeline);
            let mut freeing = decoding.start_with(name, &pipeline, &freeing());
            for step in 0..STEPS {
                if step == STEPS / 3 {
                    freeing = freeing.fork(None).unwrap();
                }
                if step == STEPS / 2 {
                    let queries = decoding.queries.slice(s![.., ..5, ..]);
                    holding.observe(queries).unwrap();
                    freeing.observe(queries).unwrap();
                }
                let expected = decoding.step(&mut *holding, step);
                let got = decoding.step(&mut *freeing, step);
                let place = format!("{name} {toml}, seed {seed}, step {step}");
                assert_eq!(got.selection, expected.selection, "{place}");
                assert_eq!(got.out, expected.out, "{place}");
            }
            let row = 4 * (32 + 32) * SHAPE.kv_heads;
            assert_eq!(holding.held_bytes(), holding.len() * row, "{name} {toml}");
            let live = expected_live(&decoding.step(&mut *holding, STEPS - 1));
            let held = freeing.held_bytes() / row;
            assert!(
                live <= held && held < holding.len() * 9 / 10,
                "{name} {toml}: {held}, {live} live"
            );
        }
    }
}

/// Live tokens of the first KV head.
fn expected_live(output: &Output) -> usize {
    output.selection.as_ref().unwrap().live[0].as_ref().unwrap().len()
}

/// Pipelines that may read or draw any token free no rows.
#[test]
fn no_row_that_may_be_read_is_freed() {
    let h2o = "[[selectors]]\ntype = \"h2o\"\nheavy = 0.1\nrecent = 0.1\n";
    let quest = "[[selectors]]\ntype = \"quest\"\nsize = 0.1\n";
    let sampled = format!("{h2o}[estimator]\ntype = \"ratio\"\nepsilon = 0.2\ndelta = 0.2\n");
    for toml in ["", quest, &format!("{h2o}{quest}"), &sampled] {
        let decoding = Decoding::new(300, 6, 2, 1, false);
        let mut attention = decoding.start_with("cpu", &pipeline(toml), &freeing());
        for step in 0..4 {
            let live = decoding.step(&mut *attention, step).selection.unwrap().live;
            assert!(live.iter().all(Option::is_none), "{toml}");
        }
        assert_eq!(attention.held_bytes(), attention.len() * 4 * 64 * SHAPE.kv_heads, "{toml}");
    }
}

#[test]
fn operations_that_need_freed_tokens_are_errors() {
    let decoding = Decoding::new(300, 6, 2, 1, false);
    let window = pipeline("[[selectors]]\ntype = \"window\"\nsize = 32\n");
    let mut attention = decoding.start_with("cpu", &window, &freeing());
    decoding.step(&mut *attention, 0);
    let query = decoding.queries.slice(s![.., ..1, ..]);
    let error = attention.attend(query, Some(&[301])).unwrap_err();
    let expected =
        "visible[0]: expected at least 302, because evicted tokens below are freed, got 301";
    assert_eq!(error.to_string(), expected);
    let error = attention.truncate(302).unwrap_err();
    assert!(error.to_string().starts_with("evicted tokens have been freed"), "{error}");
    attention.attend(query, Some(&[302])).unwrap();
}
