//! Tests of the kernels and statistics at every level against their definition.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray::Array2;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use vattention_core::{
    Estimator, Fraction, Goal, Kind, Picks, Pipeline, PipelineConfig, Promise, Result, Row,
    SampleStats, Selector, SelectorConfig, Shape, Site, SoftmaxForm, Step, Storage, Target,
    plugin::{Radius, Schedule},
    promise::Assumptions,
    sample::{
        Accumulator, ExactAccumulator, RemainingWork, Residual, SampleUse, Stratification,
        TokenWeights, WeighedSample,
    },
    step::{Softmax, StepThreads, TaskRunner},
    typetag,
};

use super::accumulator::CpuAccumulator;
use super::kernel::{AnyRows, KvRows, TokenSpan, exp2};
use super::query_heads::QueryHeads;
use super::sample::DrawnSample;
use super::sample_rows::SampledElement;
use super::simd::Level;
use crate::cache::{Cache, CacheView, ChunkSizes};

/// One KV head and the queries of its group, generated from a seed.
struct World {
    site: Site,
    queries: Vec<f32>,
    cache: Cache,
    tokens: usize,
    storage: Storage,
    soft_cap: Option<f32>,
    /// Logits of the attention sinks, `[group]`.
    sinks: Option<Vec<f32>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { site, tokens, storage, soft_cap, sinks, .. } = self;
        write!(f, "{:?}, {tokens} tokens, {storage:?}, {soft_cap:?}, {sinks:?}", site.shape)
    }
}

impl World {
    fn new(group: usize, dims: (usize, usize), tokens: usize, storage: Storage, seed: u64) -> Self {
        let (head_dim, value_dim) = dims;
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim, value_dim };
        let mut state = seed;
        let mut number = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        };
        let scale = 4.0 / (head_dim as f32).sqrt();
        let queries = (0..group * head_dim).map(|_| number() * scale).collect();
        let keys = Array2::from_shape_fn((tokens, head_dim), |_| number());
        let values = Array2::from_shape_fn((tokens, value_dim), |_| number() + 0.5);
        // Chunks of 4 to 256 tokens, so that the rows lie in one or in several of them.
        let chunks = ChunkSizes::new(16, 2 + (seed % 7) as u32);
        let mut cache = Cache::with_chunks(storage, head_dim, value_dim, chunks);
        let room = cache.room(tokens).unwrap();
        cache.append(keys.view().into(), values.view().into(), room);
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        Self { site, queries, cache, tokens, storage, soft_cap: None, sinks: None }
    }

    /// Bound on the relative rounding error of a sum. If rows are integers, queries and weights are
    /// rounded to 16 bits.
    fn rounding(&self) -> f64 {
        let bits = if self.storage == Storage::Q8 { 12 } else { 24 };
        2.0_f64.powi(-bits)
    }

    fn form(&self) -> SoftmaxForm<'_> {
        SoftmaxForm { soft_cap: self.soft_cap, sink_logits: self.sinks.as_deref() }
    }

    fn step<'a>(&'a self, view: &'a CacheView<'a>) -> Step<'a> {
        let (keys, values) = (view.keys(), view.values());
        let (site, queries, visible) = (&self.site, &self.queries, self.tokens);
        Step { visible, form: self.form(), ..Step::new(site, queries, keys, values) }
    }

    fn heads_over<'a, E: SampledElement>(&self, rows: &KvRows<'a, E>) -> QueryHeads<'a, E> {
        let Shape { head_dim, value_dim, .. } = self.site.shape;
        QueryHeads::new(rows, &self.queries, head_dim, value_dim).with_softmax(self.form())
    }

    /// Calls `f` with query heads over the stored type.
    fn query_heads<T>(&self, view: &CacheView<'_>, f: impl Fn(&dyn AnyQueryHeads) -> T) -> T {
        match AnyRows::new(view.keys(), view.values()).unwrap() {
            AnyRows::F32(rows) => f(&self.heads_over(&rows)),
            AnyRows::F16(rows) => f(&self.heads_over(&rows)),
            AnyRows::Bf16(rows) => f(&self.heads_over(&rows)),
            AnyRows::Q8(rows) => f(&self.heads_over(&rows)),
        }
    }
}

/// Rows of a cache that stores f32.
fn f32_rows<'a>(view: &'a CacheView<'_>) -> KvRows<'a, f32> {
    let AnyRows::F32(rows) = AnyRows::new(view.keys(), view.values()).unwrap() else {
        panic!("stored as f32")
    };
    rows
}

/// Query heads over any stored type, at any level.
trait AnyQueryHeads {
    fn sums(&self, level: Level, span: TokenSpan<'_>, log_weights: Option<&[f32]>) -> Vec<Softmax>;
    fn stats(&self, level: Level, picks: &Picks, parts: &[&[u32]], n: usize) -> Vec<SampleStats>;
    fn weighed(
        &self,
        level: Level,
        picks: &Picks,
        parts: &[&[u32]],
        n: usize,
        strata: bool,
    ) -> Vec<WeighedSample>;
    /// Logits of the rows of each member, and values.
    fn gather(&self, threads: StepThreads<'_>, parts: &[&[u32]]) -> (Vec<Vec<f32>>, Vec<f32>);
}

impl<E: SampledElement> AnyQueryHeads for QueryHeads<'_, E> {
    fn sums(&self, level: Level, span: TokenSpan<'_>, log_weights: Option<&[f32]>) -> Vec<Softmax> {
        self.clone().with_level(level).read(span, log_weights)
    }

    fn stats(&self, level: Level, picks: &Picks, parts: &[&[u32]], n: usize) -> Vec<SampleStats> {
        let heads = self.clone().with_level(level);
        let mut accumulator = CpuAccumulator::new(&heads, n, true, false);
        stats(&mut accumulator, picks, parts, heads.members())
    }

    fn weighed(
        &self,
        level: Level,
        picks: &Picks,
        parts: &[&[u32]],
        n: usize,
        strata: bool,
    ) -> Vec<WeighedSample> {
        let heads = self.clone().with_level(level);
        let mut accumulator = CpuAccumulator::new(&heads, n, true, false);
        weighed(&mut accumulator, picks, parts, heads.members(), strata)
    }

    fn gather(&self, threads: StepThreads<'_>, parts: &[&[u32]]) -> (Vec<Vec<f32>>, Vec<f32>) {
        let heads = self.clone().with_threads(threads);
        let mut sample = DrawnSample::new(&heads);
        for tokens in parts {
            sample.gather(&heads, tokens);
        }
        let logits = (0..heads.members()).map(|member| sample.logits(member).to_vec());
        (logits.collect(), sample.stored.values(&heads))
    }
}

/// Draws a uniform sample in parts and checks it after each. Returns the last statistics of each
/// member.
fn stats(
    accumulator: &mut dyn Accumulator,
    picks: &Picks,
    parts: &[&[u32]],
    members: usize,
) -> Vec<SampleStats> {
    let stats = |accumulator: &mut dyn Accumulator, member, residual: &Residual, _| {
        accumulator.stats(member, residual)
    };
    draw_and_check(accumulator, picks, parts, (SampleUse::Uniform, members), stats)
}

/// Draws a weighted sample in parts and checks it after each. Returns the last estimates of each
/// member. With `strata`, tokens are in six of seven strata.
fn weighed(
    accumulator: &mut dyn Accumulator,
    picks: &Picks,
    parts: &[&[u32]],
    members: usize,
    strata: bool,
) -> Vec<WeighedSample> {
    let weighed = |accumulator: &mut dyn Accumulator, member, residual: &Residual, count| {
        let (p, factors) = weights(count);
        let token_strata = (0..count).map(|i| [0, 1, 2, 4, 5, 6][i / 3 % 6]).collect();
        let neighbours = [&[1_usize, 4][..], &[0], &[4], &[2], &[], &[6, 2], &[5, 4]]
            .map(|neighbours: &[usize]| neighbours.to_vec())
            .to_vec();
        let stratification = Stratification { strata: token_strata, neighbours };
        let strata = strata.then_some(&stratification);
        let weights = TokenWeights { p: &p, factors: &factors, strata };
        accumulator.weighed(&vec![*residual; members], &weights).swap_remove(member)
    };
    draw_and_check(accumulator, picks, parts, (SampleUse::Weighted, members), weighed)
}

/// Inclusion probabilities of a sample's tokens, at least 0.25, and their variance factors.
fn weights(count: usize) -> (Vec<f64>, Vec<f64>) {
    let p: Vec<f64> = (0..count).map(|i| 0.25 + 0.75 / (1 + i % 9) as f64).collect();
    let factors = p.iter().map(|p| (1.0 / (1.3 * p).min(1.0) - 1.0) / p).collect();
    (p, factors)
}

/// Draws a sample in parts and calls `check` for each member after each. Returns the last results.
fn draw_and_check<T>(
    accumulator: &mut dyn Accumulator,
    picks: &Picks,
    parts: &[&[u32]],
    (for_use, members): (SampleUse, usize),
    check: impl Fn(&mut dyn Accumulator, usize, &Residual, usize) -> T,
) -> Vec<T> {
    let residual = Residual {
        n_s: picks.visible() - picks.len(),
        query_heads: 1,
        visible: picks.visible(),
        max_norm_v: 3.0,
        bound: Some(1.0),
    };
    accumulator.take(picks);
    let (mut last, mut count) = (Vec::new(), 0);
    for part in parts {
        accumulator.draw(part, for_use);
        count += part.len();
        last = (0..members).map(|member| check(accumulator, member, &residual, count)).collect();
    }
    last
}

/// Relative to a row read in order, a row of a list takes 1.6 times as long, a drawn row twice as
/// long, and the scan of a token 0.25 times; the rest of a sample takes as long as 100 kB in order.
#[test]
fn dense_steps_are_faster_than_long_lists_and_checks_of_large_samples() {
    // A check of a value of 32 elements costs as much as 300 bytes in order, and one more for each
    // element and member; a row has 256 bytes. A new token is checked 1.5 times on average, and a
    // token that was drawn before half a time more.
    for (group, checking) in [(1, 332.0 / 256.0), (4, 428.0 / 256.0)] {
        let world = World::new(group, (32, 32), 4000, Storage::F32, 3);
        let view = world.cache.view();
        let heads = QueryHeads::new(&f32_rows(&view), &world.queries, 32, 32);
        let mut accumulator = CpuAccumulator::new(&heads, 4000, false, false);
        let from = |rows: f64| rows as usize + 1;
        assert_eq!(accumulator.dense_from(RemainingWork::Reading), from(4000.0 / 1.6));
        assert_eq!(
            accumulator.dense_from(RemainingWork::Checks),
            from(4000.0 / (2.0 + 1.5 * checking))
        );
        let scanned = accumulator.dense_from(RemainingWork::Scan);
        assert_eq!(scanned, from((3000.0 - 100_000.0 / 256.0) / (2.0 + 1.5 * checking)));
        accumulator.draw(&(0..600).collect::<Vec<_>>(), SampleUse::Uniform);
        assert_eq!(accumulator.dense_from(RemainingWork::Reading), from(4000.0 / 1.6));
        let left = 4000.0 - 600.0 * checking / 2.0;
        assert_eq!(
            accumulator.dense_from(RemainingWork::Checks),
            from(left / (2.0 + 1.5 * checking))
        );
        accumulator.draw(&(600..4000).collect::<Vec<_>>(), SampleUse::Uniform);
        let left = 4000.0 - 4000.0 * checking / 2.0;
        assert_eq!(
            accumulator.dense_from(RemainingWork::Checks),
            from(left.max(0.0) / (2.0 + 1.5 * checking))
        );
        let never_dense = CpuAccumulator::new(&heads, 4000, true, false);
        for work in [RemainingWork::Reading, RemainingWork::Checks, RemainingWork::Scan] {
            assert_eq!(never_dense.dense_from(work), usize::MAX);
        }
    }
}

/// Logits are in order of tokens, for tokens read in pieces, in tiles, deterministically and drawn.
#[test]
fn feedback_contains_the_logit_of_each_token_read() {
    let world = World::new(6, (32, 5), 5000, Storage::F32, 3);
    let view = world.cache.view();
    let step = world.step(&view);
    for (from, checked) in [(usize::MAX, true), (usize::MAX, false), (2000, true)] {
        let config = PipelineConfig {
            selectors: vec![Box::new(HundredthTokens {})],
            estimator: Some(Box::new(MostTokens { checked })),
            ..PipelineConfig::default()
        };
        let pipeline = Pipeline::new(&Arc::new(config), world.site).unwrap();
        let heads = QueryHeads::new(&f32_rows(&view), &world.queries, 32, 5);
        let mut accumulator = CpuAccumulator::new(&heads, world.tokens, from == usize::MAX, true);
        let read = pipeline.sample(&step, &pipeline.choose(&step), 0, &mut accumulator);
        assert_eq!(read.fell_back, from != usize::MAX);
        let list = read.list();
        let (sums, _) = accumulator.finish(&read);
        for (member, got) in sums.iter().enumerate() {
            let row = step.row(member);
            let mut want = Softmax::new(0);
            assert_eq!(got.logits.len(), list.indices.len());
            for (i, &logit) in got.logits.iter().enumerate() {
                let token = list.indices[i];
                let want_logit = f64::from(row.logit(token as usize));
                assert!((logit - want_logit).abs() < 1e-4, "token {token}");
                want.add(logit, 1.0 / f64::from(list.probabilities[i]), &[]);
            }
            let difference = got.sums.log_denominator() - want.log_denominator();
            assert!(difference.abs() < 1e-5, "member {member}: {difference:e}");
        }
    }
}

/// Picks every hundredth token, and needs feedback.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HundredthTokens {}

#[typetag::serde(name = "hundredth-tokens")]
impl SelectorConfig for HundredthTokens {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for HundredthTokens {
    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_all((3..5000).step_by(100));
    }

    fn needs_feedback(&self) -> bool {
        true
    }
}

/// Requires most of the tokens, after a first check of the sample or without any.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MostTokens {
    checked: bool,
}

#[typetag::serde(name = "most-tokens")]
impl Estimator for MostTokens {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let relative = if stats.b < 4500 { f64::INFINITY } else { 0.0 };
        Radius::new(relative, Kind::Asymptotic, Assumptions::NONE)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        let half = Fraction::try_from(0.5).expect("a fraction");
        Ok(Promise::new(Target::Sdpa, half, half).into())
    }

    fn schedule(&self) -> Schedule {
        if self.checked { Schedule::Adaptive { rounds: 2 } } else { Schedule::Before }
    }
}

/// Weights differ from piece to piece; logits are similar, or much larger in one lane.
#[test]
fn long_lists_are_summed_once_and_relative_to_the_largest_logit() {
    let similar = |i: usize| i as f32 / 9000.0;
    let large_in_one_lane = |i: usize| if i > 1500 && i % 16 == 13 { 150.0 } else { 0.0 };
    let logits: [&dyn Fn(usize) -> f32; 2] = [&similar, &large_in_one_lane];
    for (group, logit) in [1, 2, 4].into_iter().flat_map(|group| logits.map(|f| (group, f))) {
        let mut world = World::new(group, (32, 3), 9000, Storage::F32, 5);
        let keys = Array2::from_shape_fn((9000, 32), |(i, _)| logit(i));
        let values = Array2::from_shape_fn((9000, 3), |(i, j)| ((i + j) % 7) as f32);
        world.queries.fill(1.0 / 32.0);
        world.cache = Cache::with_chunks(Storage::F32, 32, 3, ChunkSizes::new(16, 5));
        let room = world.cache.room(9000).unwrap();
        world.cache.append(keys.view().into(), values.view().into(), room);
        let view = world.cache.view();
        let step = world.step(&view);
        let list: Vec<u32> = (0..9000).collect();
        let log_weights: Vec<f32> = (0..9000).map(|i| (i / 1000) as f32).collect();
        for level in Level::all() {
            let got = world.query_heads(&view, |heads| {
                heads.sums(level, TokenSpan::List(&list), Some(&log_weights))
            });
            for (member, got) in got.iter().enumerate() {
                let weight = |i: usize| f64::from(log_weights[i]).exp2();
                let difference = difference(got, &exact(&step, member, &list, weight));
                assert!(difference < 1e-4, "{level:?}, member {member}: {difference:e}");
            }
        }
    }
}

fn storages() -> impl Strategy<Value = Storage> {
    prop::sample::select(&Storage::ALL[..])
}

fn worlds() -> impl Strategy<Value = World> {
    let any_dims = (32usize..=256, 1usize..=256);
    let dims = prop_oneof![any_dims, Just((64, 64)), Just((128, 128))];
    let soft_caps = prop_oneof![Just(None), (0.5_f32..50.0).prop_map(Some)];
    let sinks = prop::option::of(prop::collection::vec(-5.0_f32..20.0, 16));
    let forms = (soft_caps, sinks);
    (1usize..=16, dims, 1usize..=400, storages(), any::<u64>(), forms).prop_map(
        |(group, dims, tokens, storage, seed, (soft_cap, sinks))| {
            let sinks = sinks.map(|sinks| sinks[..group].to_vec());
            World { soft_cap, sinks, ..World::new(group, dims, tokens, storage, seed) }
        },
    )
}

/// `Σ e w` and `Σ e w v` of one query head without its sink, in f64.
fn exact(step: &Step<'_>, member: usize, tokens: &[u32], weight: impl Fn(usize) -> f64) -> Softmax {
    let row = step.row(member);
    let mut softmax = Softmax::new(step.values.dim());
    let mut value = vec![0.0; step.values.dim()];
    let mut key = vec![0.0; step.keys.dim()];
    for (i, &token) in tokens.iter().enumerate() {
        step.values.copy_row(token as usize, &mut value);
        step.keys.copy_row(token as usize, &mut key);
        let product: f64 =
            key.iter().zip(row.query()).map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
        let cap = |cap: f32| f64::from(cap) * (product / f64::from(cap)).tanh();
        softmax.add(row.form().soft_cap.map_or(product, cap), weight(i), &value);
    }
    softmax
}

/// Largest difference of two sums, relative to the denominator; NaN if any difference is NaN.
fn difference(got: &Softmax, want: &Softmax) -> f64 {
    let mut got = got.clone();
    got.rebase(want.shift());
    let relative = |got: f64, want: f64, scale: f64| (got - want).abs() / scale;
    let (a, b) = (&got, want);
    let numerators = a.numerator().iter().zip(b.numerator());
    let scale = b.denominator();
    numerators
        .map(|(&a, &b)| relative(a, b, scale))
        .chain([relative(a.denominator(), b.denominator(), scale)])
        .fold(0.0, |a, b| if a.is_nan() || a >= b { a } else { b })
}

/// A fraction `share / 7` of the tokens, not in ascending order.
fn some_tokens(tokens: usize, share: usize) -> Vec<u32> {
    let mut list: Vec<u32> = (0..tokens as u32).filter(|i| i % 7 < share as u32).collect();
    list.reverse();
    let third = list.len() / 3;
    list.rotate_left(third);
    list
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 128,
        ..ProptestConfig::default()
    })]

    /// Sums over a range that begins anywhere or at a strip, and over a list with and without
    /// weights, at every level.
    #[test]
    fn sums_match_the_definition(world in worlds(), share in 1usize..7, begin in 0.0..1.0) {
        let view = world.cache.view();
        let step = world.step(&view);
        let from = (begin * world.tokens as f64) as usize;
        let from_strip = from / 64 * 64;
        let rest = |from: usize| (from as u32..world.tokens as u32).collect::<Vec<u32>>();
        let list = some_tokens(world.tokens, share);
        let log_weights: Vec<f32> = (0..list.len()).map(|i| (i % 5) as f32).collect();
        let weight = |i: usize| f64::from(log_weights[i]).exp2();
        for level in Level::all() {
            let (range, strips, plain, weighted) = world.query_heads(&view, |heads| (
                heads.sums(level, TokenSpan::Range(from, world.tokens), None),
                heads.sums(level, TokenSpan::Range(from_strip, world.tokens), None),
                heads.sums(level, TokenSpan::List(&list), None),
                heads.sums(level, TokenSpan::List(&list), Some(&log_weights)),
            ));
            for member in 0..world.site.shape.group() {
                for (got, want) in [
                    (&range, exact(&step, member, &rest(from), |_| 1.0)),
                    (&strips, exact(&step, member, &rest(from_strip), |_| 1.0)),
                    (&plain, exact(&step, member, &list, |_| 1.0)),
                    (&weighted, exact(&step, member, &list, weight)),
                ] {
                    let difference = difference(&got[member], &want);
                    let bound = 3e-6 + world.rounding();
                    prop_assert!(difference < bound, "{level:?}, member {member}: {difference:e}");
                }
            }
        }
    }

    /// Statistics of a sample that is drawn in two parts, with equal weights and with different
    /// ones.
    #[test]
    fn statistics_match_the_definition(world in worlds(), share in 1usize..6) {
        let view = world.cache.view();
        let step = world.step(&view);
        let mut picks = Picks::new(world.tokens);
        picks.take_all((0..world.tokens).filter(|i| i % 7 == 6));
        let drawn = some_tokens(world.tokens, share);
        let (first, second) = drawn.split_at(drawn.len() / 3);
        let rows = step.rows();
        let parts = [first, second];
        let want_uniform = stats(&mut ExactAccumulator::new(&rows), &picks, &parts, rows.len());
        let want_weighted = [false, true].map(|strata| {
            weighed(&mut ExactAccumulator::new(&rows), &picks, &parts, rows.len(), strata)
        });
        for level in Level::all() {
            let (uniform, weighted) = world.query_heads(&view, |heads| (
                heads.stats(level, &picks, &parts, world.tokens),
                [false, true]
                    .map(|strata| heads.weighed(level, &picks, &parts, world.tokens, strata)),
            ));
            for (got, want) in uniform.iter().zip(&want_uniform) {
                check_stats(got, want, level, world.rounding())?;
            }
            for (got, want) in weighted.iter().flatten().zip(want_weighted.iter().flatten()) {
                check_weighed(got, want, level, world.rounding())?;
            }
        }
    }

    #[test]
    fn exponentials_are_precise(
        numbers in prop::collection::vec(-180.0_f32..20.0, 0..70),
        shift in -5.0_f32..5.0,
    ) {
        for level in Level::all() {
            let out = exp2(level, &numbers, shift);
            prop_assert_eq!(out.len(), numbers.len());
            for (&x, &got) in numbers.iter().zip(&*out) {
                let want = f64::from(x - shift).exp2();
                let allowed = 4e-7 * want + f64::from(f32::MIN_POSITIVE);
                let close = (f64::from(got) - want).abs() <= allowed;
                prop_assert!(close, "2^({x} - {shift}) = {got}");
            }
        }
    }
}

/// Compares all statistics with those of the definition.
///
/// `got` are differences of sums of `e² |v|²` after four roundings, each of at most `unit`; the
/// terms are at most `e² · dim · 1.5²` here. Statistics much smaller than these sums have larger
/// relative errors.
fn check_stats(
    got: &SampleStats,
    want: &SampleStats,
    level: Level,
    unit: f64,
) -> std::result::Result<(), TestCaseError> {
    prop_assert_eq!((got.b, got.n_s, got.visible), (want.b, want.n_s, want.visible));
    prop_assert_eq!((got.value_dim, got.max_norm_v), (want.value_dim, want.max_norm_v));
    // The shifts differ, and so the units.
    let e = got.d / want.d;
    let four_roundings = 4.0 * unit;
    let rounding = four_roundings * 2.25 * want.value_dim as f64;
    let (rounding_ev, rounding_w) = (rounding / want.trace_ev, rounding / want.trace_w);
    let rounding_e = four_roundings / want.var_e;
    for (name, got, want, rounding) in [
        ("d_certain", got.d_certain / e, want.d_certain, 0.0),
        ("norm_n", got.norm_n / e, want.norm_n, 0.0),
        ("var_e", got.var_e / (e * e), want.var_e, rounding_e),
        ("trace_ev", got.trace_ev / (e * e), want.trace_ev, rounding_ev),
        ("trace_w", got.trace_w / (e * e), want.trace_w, rounding_w),
        ("nu", got.nu, want.nu, 4.0 * rounding_w),
        ("kurtosis_e", got.kurtosis_e, want.kurtosis_e, 4.0 * rounding_e),
        ("kurtosis_w", got.kurtosis_w, want.kurtosis_w, 4.0 * rounding_w),
        ("bound", got.bound.unwrap_or(0.0) / e, want.bound.unwrap_or(0.0), 0.0),
    ] {
        let allowed = (2e-5 + 4.0 * unit + rounding.max(0.0)) * want.abs();
        let close = (got - want).abs() <= allowed || got.is_nan() && want.is_nan();
        prop_assert!(close, "{level:?}: {name} is {got}, not {want}");
    }
    Ok(())
}

/// Compares all estimates of a weighted sample with the definition, up to roundings of at most
/// `unit`. Squares are differences of products of values, which are at most `2.25 dim` here.
fn check_weighed(
    got: &WeighedSample,
    want: &WeighedSample,
    level: Level,
    unit: f64,
) -> std::result::Result<(), TestCaseError> {
    let (totals, dim) = (&want.totals, want.totals.value_dim as f64);
    prop_assert_eq!(got.totals.value_dim, totals.value_dim);
    let tolerance = 1e-5 + 4.0 * unit;
    let near = |name: &str, got: f64, want: f64, scale: f64| {
        let close = (got - want).abs() <= tolerance * scale;
        prop_assert!(close, "{level:?}: {name} is {got}, not {want}");
        Ok(())
    };
    // The shifts differ, and so the units.
    let e = (got.totals.shift - totals.shift).exp().recip();
    near("d", got.totals.d / e, totals.d, totals.d)?;
    near("d_certain", got.totals.d_certain / e, totals.d_certain, totals.d)?;
    near("out_squared", got.totals.out_squared, totals.out_squared, dim)?;
    near("drift", got.totals.drift, totals.drift, dim.sqrt())?;
    let largest_e = want.squares.e.iter().copied().fold(0.0, f64::max);
    let largest_square = 4.0 * 2.25 * dim * largest_e.max(1e-30);
    for (name, got, want, scale) in [
        ("|w|²", &got.squares.w, &want.squares.w, largest_square),
        ("|e v|²", &got.squares.ev, &want.squares.ev, largest_square),
        ("e²", &got.squares.e, &want.squares.e, largest_e),
    ] {
        prop_assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&**want) {
            near(name, got / (e * e), *want, scale)?;
        }
    }
    let trace: f64 = weights(want.squares.w.len())
        .1
        .iter()
        .zip(&*want.squares.w)
        .map(|(factor, square)| factor * square)
        .sum();
    // The effective rank of terms that are not much larger than their rounding errors is unknown.
    let noise = tolerance * largest_square * want.squares.w.len() as f64 / trace;
    if noise < 0.01 {
        let scale = 1.0 + 8.0 * noise / tolerance;
        near("inverse rank", got.inverse_rank, want.inverse_rank, scale * want.inverse_rank)?;
    }
    Ok(())
}

/// Threads of which one always waits for tasks.
#[derive(Debug, Default)]
struct WaitingThreads {
    tasks: AtomicUsize,
}

impl TaskRunner for WaitingThreads {
    fn run(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.tasks.fetch_add(count, Ordering::Relaxed);
        std::thread::scope(|scope| {
            (0..count).for_each(|index| drop(scope.spawn(move || task(index))));
        });
    }

    fn has_waiting_thread(&self) -> bool {
        true
    }
}

#[test]
fn threads_that_wait_gather_parts_of_the_rows() {
    for storage in [Storage::F32, Storage::F16, Storage::Bf16, Storage::Q8] {
        let world = World::new(5, (64, 40), 1500, storage, 11);
        let view = world.cache.view();
        let tokens: Vec<u32> = (0..1121).rev().collect();
        let (first, second) = tokens.split_at(301);
        let (parts, runner) = ([first, &[], second], WaitingThreads::default());
        let gather = |threads| world.query_heads(&view, |heads| heads.gather(threads, &parts));
        assert_eq!(gather(StepThreads::new(&runner)), gather(StepThreads::default()));
        // Three parts of 128 rows or fewer, then seven.
        assert_eq!(runner.tasks.into_inner(), 10);
    }
}

/// The sample is longer than a part, so that lags reach from part to part.
#[test]
fn statistics_of_long_samples_are_computed_in_parts() {
    let world = World::new(3, (32, 24), 1500, Storage::Bf16, 11);
    let view = world.cache.view();
    let step = world.step(&view);
    let mut picks = Picks::new(world.tokens);
    picks.take_all(0..20);
    let drawn: Vec<u32> = (20..1121).rev().collect();
    let (first, second) = drawn.split_at(301);
    let rows = step.rows();
    let want = stats(&mut ExactAccumulator::new(&rows), &picks, &[first, second], rows.len());
    for level in Level::all() {
        let got = world
            .query_heads(&view, |heads| heads.stats(level, &picks, &[first, second], world.tokens));
        for (got, want) in got.iter().zip(&want) {
            check_stats(got, want, level, world.rounding()).unwrap();
        }
    }
}

/// The squares or fourth powers of the numbers are out of the range of f32, with and without tokens
/// of value zero and much larger weight.
#[test]
fn statistics_are_right_at_any_magnitude() {
    for (magnitude, gap) in [
        (1e-30, 0.0),
        (1e-23, 0.0),
        (1e-9, 0.0),
        (1e16, 0.0),
        (1.0, 52.0),
        (1.0, 80.0),
        (1e16, 80.0),
    ] {
        let mut world = World::new(2, (32, 24), 300, Storage::F32, 17);
        let view = world.cache.view();
        let (mut keys, mut values) = (view.keys().to_array(0..300), view.values().to_array(0..300));
        values *= magnitude;
        world.queries.fill(0.1);
        for mut key in keys.rows_mut().into_iter().step_by(5) {
            key += gap / 3.2;
        }
        for mut value in values.rows_mut().into_iter().step_by(5) {
            value *= f32::from(u8::from(gap == 0.0));
        }
        world.cache = Cache::new(Storage::F32, 32, 24);
        let room = world.cache.room(300).unwrap();
        world.cache.append(keys.view().into(), values.view().into(), room);
        let view = world.cache.view();
        let step = world.step(&view);
        let mut picks = Picks::new(300);
        picks.take_all((0..300).filter(|i| i % 7 == 6));
        let drawn = some_tokens(300, 2);
        let rows = step.rows();
        let want = stats(&mut ExactAccumulator::new(&rows), &picks, &[&drawn], rows.len());
        let want_weighed = [false, true].map(|strata| {
            weighed(&mut ExactAccumulator::new(&rows), &picks, &[&drawn], rows.len(), strata)
        });
        for level in Level::all() {
            let weighed = [false, true].map(|strata| {
                world.query_heads(&view, |heads| {
                    heads.weighed(level, &picks, &[&drawn], 300, strata)
                })
            });
            for (got, want) in weighed.iter().flatten().zip(want_weighed.iter().flatten()) {
                let (out_squared, want_out) = (got.totals.out_squared, want.totals.out_squared);
                let close = |got: f64, want: f64| (got - want).abs() <= 1e-4 * want.abs();
                assert!(close(out_squared, want_out), "{got:?}, not {want:?}");
                let unit = (got.totals.shift - want.totals.shift).exp();
                for (got, want) in [
                    (&got.squares.w, &want.squares.w),
                    (&got.squares.ev, &want.squares.ev),
                    (&got.squares.e, &want.squares.e),
                ] {
                    let largest = want.iter().copied().fold(0.0, f64::max);
                    let near = |(got, want): (&f64, &f64)| {
                        (got * unit * unit - want).abs() <= 1e-4 * largest
                    };
                    assert!(got.iter().zip(&**want).all(near), "{got:?}, not {want:?}");
                }
                let ranks = [got.inverse_rank, want.inverse_rank];
                assert!(close(ranks[0], ranks[1]), "{ranks:?}");
            }
            let got = world.query_heads(&view, |heads| heads.stats(level, &picks, &[&drawn], 300));
            for (got, want) in got.iter().zip(&want) {
                for (name, got, want) in [
                    ("norm_n", got.norm_n, want.norm_n),
                    ("var_e", got.var_e, want.var_e),
                    ("trace_ev", got.trace_ev, want.trace_ev),
                    ("trace_w", got.trace_w, want.trace_w),
                    ("nu", got.nu, want.nu),
                    ("kurtosis_e", got.kurtosis_e, want.kurtosis_e),
                    ("kurtosis_w", got.kurtosis_w, want.kurtosis_w),
                ] {
                    let close = want > 0.0 && (got - want).abs() <= 1e-4 * want;
                    assert!(close, "{level:?}, {magnitude:e}, {gap}: {name} is {got}, not {want}");
                }
            }
        }
    }
}

/// The sum of thousands of equal numbers in f32 would drift.
#[test]
fn the_mean_of_equal_values_is_the_value() {
    let (tokens, value) = (8192, 0.953_f32);
    let mut cache = Cache::new(Storage::F32, 32, 32);
    let room = cache.room(tokens).unwrap();
    let keys = Array2::<f32>::zeros((tokens, 32));
    let values = Array2::from_elem((tokens, 32), value);
    cache.append(keys.view().into(), values.view().into(), room);
    let view = cache.view();
    for group in [1, 4] {
        let heads = QueryHeads::new(&f32_rows(&view), &vec![1.0; group * 32], 32, 32);
        for level in Level::all() {
            let sums = heads.sums(level, TokenSpan::Range(0, tokens), None);
            for x in sums.iter().flat_map(Softmax::output) {
                let difference = (x - f64::from(value)).abs();
                assert!(difference < 5e-6, "{level:?}, {group} heads: {difference:e}");
            }
        }
    }
}

/// A deterministic token has the weight e^55, relative to which squares of the other weights would
/// underflow in f32.
#[test]
fn the_spread_of_a_sample_of_tiny_weights_is_precise() {
    let mut world = World::new(1, (32, 8), 1, Storage::F32, 5);
    world.queries.fill(0.1);
    let others = World::new(1, (32, 8), 119, Storage::F32, 6);
    let view = others.cache.view();
    let mut keys = view.keys().to_array(0..119);
    keys.row_mut(0).fill(17.2);
    let mut values = view.values().to_array(0..119);
    values.row_mut(0).fill(0.0);
    world.cache = Cache::new(Storage::F32, 32, 8);
    let room = world.cache.room(119).unwrap();
    world.cache.append(keys.view().into(), values.view().into(), room);
    world.tokens = 119;

    let view = world.cache.view();
    let step = world.step(&view);
    let mut picks = Picks::new(world.tokens);
    picks.take(0);
    let rows = step.rows();
    let drawn: Vec<u32> = (1..100).rev().collect();
    let want = stats(&mut ExactAccumulator::new(&rows), &picks, &[&drawn], 1);
    for level in Level::all() {
        let got =
            world.query_heads(&view, |heads| heads.stats(level, &picks, &[&drawn], world.tokens));
        for (name, got, want) in [
            ("trace_ev", got[0].trace_ev, want[0].trace_ev),
            ("trace_w", got[0].trace_w, want[0].trace_w),
            ("var_e", got[0].var_e, want[0].var_e),
            ("nu", got[0].nu, want[0].nu),
            ("norm_n", got[0].norm_n, want[0].norm_n),
        ] {
            assert!((got - want).abs() <= 1e-4 * want, "{level:?}: {name} is {got}, not {want}");
        }
    }
}
