//! Tests of the `cpu` backend alone: fallback, threads, batches and panics.

use crate::common;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{MODEL, MODEL_LAYER, normal};
use ndarray::{Array3, ArrayView3, s};
use serde::{Deserialize, Serialize};
use vattention::config::{Loader, load};
use vattention::estimators::{Mode, Ratio};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::samplers::{LogitIndex, Priority};
use vattention::selectors::Sink;

use vattention::{
    Attention, BatchEntry, FallBack, Fraction, Goal, Kind, Options, Output, PipelineConfig,
    Promise, Result, Shape, Share, Size, Storage, Target, backend,
    plugin::{
        Assumptions, Design, Estimator, NewTokens, Picks, Radius, Row, SampleEvidence, SampleStats,
        Sampler, SamplerConfig, Selector, SelectorConfig, Site, Stream, register, typetag,
    },
};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 40 };

/// Starts a sequence of `tokens` tokens.
fn start(
    pipeline: &Arc<PipelineConfig>,
    shape: Shape,
    tokens: usize,
    options: &Options,
) -> Box<dyn Attention> {
    start_on("cpu", pipeline, (shape, tokens), options)
}

fn start_on(
    name: &str,
    pipeline: &Arc<PipelineConfig>,
    (shape, tokens): (Shape, usize),
    options: &Options,
) -> Box<dyn Attention> {
    let backend = backend(name).unwrap();
    let mut attention = backend.start(pipeline, MODEL_LAYER, shape, options).unwrap();
    let keys = normal((shape.kv_heads, tokens, shape.head_dim), 1);
    let values = normal((shape.kv_heads, tokens, shape.value_dim), 2);
    common::append(&mut *attention, keys.view(), values.view()).unwrap();
    attention
}

/// Outputs of `cpu` and of `reference` for one query.
fn attend_on_both(
    pipeline: &Arc<PipelineConfig>,
    (shape, tokens): (Shape, usize),
    options: &Options,
) -> [Output; 2] {
    ["cpu", "reference"].map(|name| {
        let mut attention = start_on(name, pipeline, (shape, tokens), options);
        attention.attend(queries(shape, 7).view(), None).unwrap()
    })
}

fn largest_difference([ours, theirs]: &[Output; 2]) -> f32 {
    (&ours.out - &theirs.out).iter().fold(0.0, |most, x| x.abs().max(most))
}

fn queries(shape: Shape, seed: u64) -> Array3<f32> {
    normal((shape.query_heads, 1, shape.head_dim), seed)
}

fn pipeline(toml: &str) -> Arc<PipelineConfig> {
    Loader::default().parse("cpu.toml", toml).unwrap()
}

/// A dense step is faster than reading a long window, and slower than reading a short one.
#[test]
fn long_lists_are_read_densely_unless_fallback_is_disabled() {
    for (share, size, sum) in [("group", 0.9, 0.9), ("head", 0.9, 1.8), ("head", 0.4, 0.8)] {
        let window = pipeline(&format!(
            "share = \"{share}\"\n[[selectors]]\ntype = \"window\"\nsize = {size}\n"
        ));
        let dense = load(common::root("configs/dense.toml")).unwrap();
        let attend = |pipeline, fall_back| -> Output {
            let options = Options { fall_back, ..Options::default() };
            start(pipeline, SHAPE, 3000, &options).attend(queries(SHAPE, 3).view(), None).unwrap()
        };
        let [fast, all] = [&window, &dense].map(|pipeline| attend(pipeline, FallBack::ByCount));
        let sparse = attend(&window, FallBack::Never);
        assert_eq!(fast.out, all.out, "{share}, {sum}: the output of dense attention");
        for row in &fast.rows {
            assert!(row.fell_back, "{share}, {sum}");
            assert_eq!((row.density(), row.certificate.kind), (1.0, Kind::Exact));
            assert!(row.certificate.held);
        }
        for row in &sparse.rows {
            assert!(!row.fell_back && row.certificate.kind == Kind::None, "{share}, {sum}");
            assert_eq!(row.certain, (3000.0 * size) as usize);
        }
    }
    let short = pipeline("[[selectors]]\ntype = \"window\"\nsize = 0.3\n");
    let output = start(&short, SHAPE, 3000, &Options::default())
        .attend(queries(SHAPE, 3).view(), None)
        .unwrap();
    assert!(output.rows.iter().all(|row| !row.fell_back && row.certain == 900));
}

/// An estimator that needs nearly all tokens causes a dense step.
#[test]
fn a_large_budget_is_met_by_a_dense_step() {
    let costly = pipeline(
        "[[selectors]]\ntype = \"sink\"\nsize = 8\n\
         [estimator]\ntype = \"ratio\"\nepsilon = 0.01\ndelta = 0.01\n",
    );
    let dense = load(common::root("configs/dense.toml")).unwrap();
    let attend = |pipeline| {
        let options = Options::default();
        start(pipeline, SHAPE, 4000, &options).attend(queries(SHAPE, 3).view(), None).unwrap()
    };
    let (output, all) = (attend(&costly), attend(&dense));
    assert_eq!(output.out, all.out);
    for row in &output.rows {
        assert!(row.fell_back && row.certificate.held);
        assert_eq!((row.certain, row.certificate.kind), (4000, Kind::Exact));
    }
}

/// Requires all tokens, unless all weights are equal.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Wary {}

#[typetag::serde(name = "wary")]
impl Estimator for Wary {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let relative = if stats.var_e > 0.0 && stats.b < stats.n_s { f64::INFINITY } else { 0.0 };
        Radius::new(relative, Kind::None, Assumptions::NONE)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let half = Fraction::try_from(0.5).unwrap();
        Ok(Promise::new(Target::Sdpa, half, half).into())
    }
}

register!(Estimator, "wary", Wary, "all tokens, unless all weights are equal");

/// Query heads whose lists are too long fall back to a dense step, without effect on the others.
#[test]
fn heads_that_fall_back_do_not_affect_others() {
    let shape = Shape { query_heads: 4, kv_heads: 1, ..SHAPE };
    let wary = PipelineConfig {
        share: Share::Head,
        selectors: vec![Box::new(Sink { size: Size::Tokens(8) })],
        estimator: Some(Box::new(Wary {})),
        ..PipelineConfig::default()
    };
    let dense = Arc::new(PipelineConfig::default());
    let mut queries = queries(shape, 3);
    queries.slice_mut(s![1, .., ..]).fill(0.0);
    let attend = |pipeline, fall_back| {
        let options = Options { fall_back, return_selection: true, ..Options::default() };
        start(pipeline, shape, 4000, &options).attend(queries.view(), None).unwrap()
    };
    let wary = Arc::new(wary);
    let [output, all] = [&wary, &dense].map(|pipeline| attend(pipeline, FallBack::ByCount));
    let sparse = attend(&wary, FallBack::Never);
    assert_eq!(
        output.rows.iter().map(|row| row.fell_back).collect::<Vec<_>>(),
        [true, false, true, true]
    );
    for head in 0..4 {
        let expected = if head == 1 { &sparse } else { &all };
        let [ours, theirs] = [&output, expected].map(|output| output.out.slice(s![head, 0, ..]));
        assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-6), "head {head}");
        let [ours, theirs] =
            [&output, expected].map(|output| output.selection.as_ref().unwrap().row(head));
        assert_eq!(ours, theirs, "head {head}");
    }
}

/// Number of designs that samplers of the type [`Counted`] have made.
static DESIGNS: AtomicUsize = AtomicUsize::new(0);

/// `priority` by keys in 8 bits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Counted {}

#[typetag::serde(name = "counted")]
impl SamplerConfig for Counted {
    fn build(&self, site: &Site) -> Result<Box<dyn Sampler>> {
        let priority = Priority { index: LogitIndex::Keys, ..Priority::default() };
        Ok(Box::new(CountedSampler { priority: priority.build(site)? }))
    }

    fn base(&self) -> Size {
        Size::Tokens(128)
    }

    fn evidence(&self) -> SampleEvidence {
        SampleEvidence::Proof
    }
}

#[derive(Clone)]
struct CountedSampler {
    priority: Box<dyn Sampler>,
}

impl Sampler for CountedSampler {
    fn append(&mut self, new: &NewTokens<'_>) {
        self.priority.append(new);
    }

    fn design<'a>(
        &'a self,
        readers: &[Row<'a>],
        picks: &'a Picks,
        stream: &Stream,
    ) -> Box<dyn Design + 'a> {
        DESIGNS.fetch_add(1, Ordering::Relaxed);
        self.priority.design(readers, picks, stream)
    }
}

register!(Sampler, "counted", Counted, "priority sampling that counts designs");

/// If a rigorous sample would have to be too large, later steps read every token without one, and
/// a sample is tried again after some steps.
#[test]
fn samples_that_were_too_large_are_seldom_tried() {
    const STEPS: usize = 40;
    let [epsilon, delta] = [0.01, 0.1].map(|x| Fraction::try_from(x).unwrap());
    let mut estimator = Ratio::new(epsilon, delta);
    estimator.mode = Mode::Rigorous;
    let rigorous = Arc::new(PipelineConfig {
        share: Share::Head,
        selectors: vec![Box::new(Sink { size: Size::Tokens(8) })],
        sampler: Some(Box::new(Counted {})),
        estimator: Some(Box::new(estimator)),
        ..PipelineConfig::default()
    });
    let run = |pipeline: &Arc<PipelineConfig>, fall_back| {
        DESIGNS.store(0, Ordering::Relaxed);
        let options = Options { fall_back, ..Options::default() };
        let mut attention = start(pipeline, SHAPE, 4000, &options);
        let step = |seed| attention.attend(queries(SHAPE, seed as u64).view(), None).unwrap();
        let outputs: Vec<Output> = (0..STEPS).map(step).collect();
        (outputs, DESIGNS.load(Ordering::Relaxed) / SHAPE.query_heads)
    };
    let (outputs, designs) = run(&rigorous, FallBack::ByCount);
    assert!((2..=8).contains(&designs), "{designs} of {STEPS} steps drew a sample");
    let (dense, _) = run(&Arc::default(), FallBack::ByCount);
    for (output, dense) in outputs.iter().zip(&dense) {
        assert_eq!(output.out, dense.out);
        assert!(output.rows.iter().all(|row| row.fell_back && row.certificate.held));
    }
    assert_eq!(run(&rigorous, FallBack::Never).1, STEPS);
}

/// With fallback by the clock, each step equals the dense step or the sparse step.
#[test]
fn fallback_by_the_clock_mixes_dense_and_sparse_steps() {
    let shape = Shape { query_heads: 6, kv_heads: 2, head_dim: 32, value_dim: 32 };
    let sampled = pipeline("[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 0.2\n");
    let attention = |pipeline, fall_back| {
        start(pipeline, shape, 900, &Options { fall_back, ..Options::default() })
    };
    let mut by_clock = attention(&sampled, FallBack::ByClock);
    let mut sparse = attention(&sampled, FallBack::Never);
    let mut dense = attention(&pipeline(""), FallBack::ByClock);
    let (mut exact, mut drawn) = (0, 0);
    for step in 0..40 {
        let queries = queries(shape, step);
        let [output, sparse, dense] = [&mut by_clock, &mut sparse, &mut dense]
            .map(|attention| attention.attend(queries.view(), None).unwrap());
        for (head, row) in output.rows.iter().enumerate() {
            let expected = if row.fell_back { &dense } else { &sparse };
            let [ours, theirs] =
                [&output, expected].map(|output| output.out.slice(s![head, 0, ..]));
            assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-6), "head {head}");
            assert_eq!(row.fell_back, row.certificate.kind == Kind::Exact, "head {head}");
            (exact, drawn) =
                (exact + usize::from(row.fell_back), drawn + usize::from(!row.fell_back));
        }
        assert!(sparse.rows.iter().all(|row| !row.fell_back));
    }
    // Both KV heads with three query heads each use each mode at least three times.
    assert!(exact >= 18 && drawn >= 18, "{exact} and {drawn}");
}

/// The pieces of a KV head for several threads do not end at the ends of lists and chunks.
#[test]
fn a_head_on_many_threads_has_the_same_bits() {
    let shape = Shape { query_heads: 3, kv_heads: 1, head_dim: 64, value_dim: 64 };
    let wide = "[[selectors]]\ntype = \"window\"\nsize = 0.5\n";
    let sampled = "[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = 0.4\n";
    for toml in ["", wide, sampled] {
        let pipeline = pipeline(toml);
        let run = |threads| {
            let options = Options {
                threads: Some(threads),
                storage: Storage::Bf16,
                fall_back: FallBack::Never,
                ..Options::default()
            };
            let mut attention = start(&pipeline, shape, 20_011, &options);
            attention.attend(queries(shape, 4).view(), None).unwrap().out
        };
        let alone = run(1);
        assert_eq!(run(2), alone, "{toml}");
        assert_eq!(run(7), alone, "{toml}");
    }
}

/// A batch has the same results as single calls. Bad input of one sequence does not affect others.
#[test]
fn batches_equal_single_calls() {
    let pipeline = load(common::root("configs/hybrid.toml")).unwrap();
    let cpu = backend("cpu").unwrap();
    let sequences = || -> Vec<Box<dyn Attention>> {
        let options = |sequence| Options { sequence, ..Options::default() };
        (0..6).map(|i| start(&pipeline, SHAPE, 500 + 37 * i, &options(i as u32))).collect()
    };
    let all: Vec<Array3<f32>> = (0..6).map(|i| queries(SHAPE, 10 + i)).collect();
    let limits: Vec<[usize; 1]> = (0..6).map(|i| [if i == 4 { 9999 } else { 400 }]).collect();
    let mut alone = sequences();
    let want: Vec<Result<Output>> = alone
        .iter_mut()
        .zip(all.iter().zip(&limits))
        .map(|(attention, (queries, limit))| attention.attend(queries.view(), Some(limit)))
        .collect();
    for threads in [None, Some(1), Some(3)] {
        let mut together = sequences();
        let batch = together
            .iter_mut()
            .zip(all.iter().zip(&limits))
            .map(|(attention, (queries, limit))| BatchEntry {
                attention: &mut **attention,
                queries: queries.view(),
                visible: Some(limit),
            })
            .collect();
        let got = cpu.attend_batch(batch, threads).unwrap();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got.out, want.out, "sequence {i}"),
                (Err(got), Err(want)) => assert_eq!((i, got.to_string()), (4, want.to_string())),
                _ => panic!("sequence {i}: {got:?}, {want:?}"),
            }
        }
    }
    let error = cpu.attend_batch(Vec::new(), Some(0)).err().unwrap();
    assert_eq!(error.to_string(), "backend cpu: threads: expected at least 1, got 0");
}

/// [`Bomb`] panics while this is true.
static BOMB: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Bomb {}

#[typetag::serde(name = "bomb")]
impl SelectorConfig for Bomb {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for Bomb {
    fn append(&mut self, new: &NewTokens<'_>) {
        assert!(!BOMB.load(Ordering::Relaxed), "as requested, at {}", new.first);
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        assert!(!BOMB.load(Ordering::Relaxed) || row.site().kv_head == 0, "as requested");
        picks.take(0);
    }
}

register!(Selector, "bomb", Bomb, "panics on request");

/// After a panic, the sequence, its threads and other sequences on them can continue.
#[test]
fn a_selector_that_panics_poisons_nothing() {
    let pipeline =
        Arc::new(PipelineConfig { selectors: vec![Box::new(Bomb {})], ..Default::default() });
    let options = Options { threads: Some(2), ..Options::default() };
    let mut attention = start(&pipeline, SHAPE, 100, &options);
    let query = queries(SHAPE, 5);
    let before = attention.attend(query.view(), None).unwrap().out;
    BOMB.store(true, Ordering::Relaxed);
    let attend = |attention: &mut Box<dyn Attention>, query: ArrayView3<'_, f32>| {
        catch_unwind(AssertUnwindSafe(|| attention.attend(query, None).unwrap().out))
    };
    assert!(attend(&mut attention, query.view()).is_err());
    BOMB.store(false, Ordering::Relaxed);
    assert_eq!(attend(&mut attention, query.view()).unwrap(), before);

    // A selector that panics while it indexes new tokens has an incomplete index. The sequence then
    // returns an error, and a fork from before can continue.
    let mut fork = attention.fork(None).unwrap();
    BOMB.store(true, Ordering::Relaxed);
    let new = normal((2, 1, 32), 9);
    let append = AssertUnwindSafe(|| attention.append(new.view(), normal((2, 1, 40), 9).view()));
    assert!(catch_unwind(append).is_err());
    BOMB.store(false, Ordering::Relaxed);
    let error = attention.attend(query.view(), None).unwrap_err().to_string();
    assert!(error.contains("the sequence cannot continue"), "{error}");
    assert_eq!(attend(&mut fork, query.view()).unwrap(), before);
}

/// With an empty sample, the output is that of the picked tokens.
#[test]
fn an_empty_sample_changes_nothing() {
    let sink = Sink { size: Size::Tokens(4) };
    for share in [Share::Group, Share::Head] {
        let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(sink.clone())];
        let nothing = Ratio::sized(Size::Tokens(0), 0.1.try_into().unwrap());
        let estimator: Option<Box<dyn Estimator>> = Some(Box::new(nothing));
        let config = PipelineConfig { selectors, share, estimator, ..Default::default() };
        let options = Options { fall_back: FallBack::Never, ..Options::default() };
        let apart = largest_difference(&attend_on_both(&Arc::new(config), (SHAPE, 50), &options));
        assert!(apart < 1e-5, "{share:?}: {apart}");
    }
}

/// Times of all phases are measured, but only on request.
#[test]
fn timings_are_returned_on_request() {
    let pipeline = load(common::root("configs/hybrid.toml")).unwrap();
    for timed in [false, true] {
        let options = Options { timed, ..Options::default() };
        let mut attention = start(&pipeline, SHAPE, 2000, &options);
        let timings = attention.attend(queries(SHAPE, 6).view(), None).unwrap().timings;
        assert_eq!(timings.is_some(), timed);
        if let Some(timings) = timings {
            let parts = [timings.select, timings.sample, timings.attend];
            assert!(parts.iter().all(|part| !part.is_zero()), "{timings:?}");
        }
    }
}

/// Runs every pipeline in the other share mode.
#[test]
fn both_share_modes_agree_with_the_reference() {
    for path in common::configs() {
        let config = load(&path).unwrap();
        let other = if config.share == Share::Group { "head" } else { "group" };
        let change = format!("share={other}");
        let flipped = Loader { set: vec![change] }.load(&path);
        // Some selectors need a list per query head.
        let Ok(flipped) = flipped else { continue };
        let shape = if common::is_trained(&path) { MODEL } else { SHAPE };
        for storage in Storage::ALL {
            let options = Options {
                storage,
                return_selection: true,
                fall_back: FallBack::Never,
                ..Options::default()
            };
            let outputs = attend_on_both(&flipped, (shape, 900), &options);
            let [ours, theirs] = &outputs;
            let rows = ours.rows.iter().zip(&theirs.rows);
            if rows.clone().any(|(ours, theirs)| ours.sampled != theirs.sampled) {
                // Budgets may differ by one token.
                assert!(rows.clone().all(|(a, b)| a.sampled.abs_diff(b.sampled) <= 1), "{path:?}");
                continue;
            }
            assert_eq!(ours.selection, theirs.selection, "{path:?}");
            let apart = largest_difference(&outputs);
            assert!(apart < 4e-5, "{path:?}: {apart}");
        }
    }
}

#[test]
fn shapes_that_are_not_multiples_of_tiles_agree_with_the_reference() {
    for (group, head_dim, value_dim) in [(1, 1, 1), (3, 33, 7), (7, 100, 257), (16, 256, 32)] {
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim, value_dim };
        let dense = load(common::root("configs/dense.toml")).unwrap();
        for tokens in [1, 5, 130] {
            let outputs = attend_on_both(&dense, (shape, tokens), &Options::default());
            let apart = largest_difference(&outputs);
            assert!(apart < 2e-6, "{shape:?}, {tokens} tokens: {apart}");
        }
    }
}
