//! Three ways to use the library in an engine: the library's kernels over the engine's KV cache,
//! the engine's own kernels over its cache, and the library's cache.
//!
//!     cargo run --release --example engine
//!
//! The engine of this example has one layer and a cache in pages of 64 tokens from one pool, listed
//! in block tables as in serving systems. A row is a key followed by a value, in bf16. Each step
//! runs in all three ways; the example prints their times, and the errors of their outputs relative
//! to attention over all tokens.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use vattention::backends::{Cpu, HeadInput};
use vattention::config::Loader;
use vattention::ndarray::{Array1, Array3, ArrayView2, Axis, s};
use vattention::{
    Backend, FallBack, Options, PipelineConfig, RowReport, Shape, Storage,
    engine::{NewTokens, PageLayout, Pipeline, Reading, Site, Softmax, Step, Tokens},
};

const SHAPE: Shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 64 };
const TOKENS: usize = 16_384;
const STEPS: usize = 4;

/// Number of elements of a row.
const ROW: usize = SHAPE.head_dim + SHAPE.value_dim;
/// Layout of the pool's pages.
const PAGE: PageLayout = PageLayout { rows: 64, stride: 64 * ROW, row_stride: ROW };

/// Pipeline that reads the first and the last tokens, the tokens with the largest logits, and a
/// sample of the size that the promise needs.
const PIPELINE: &str = r#"
[[selectors]]
type = "sink"
size = 16

[[selectors]]
type = "window"
size = 64

[[selectors]]
type = "oracle-top-k"
size = 0.02

[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.05
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let pipeline = Loader::default().parse("engine.toml", PIPELINE)?;
    let keys = numbers(SHAPE.kv_heads, TOKENS, 1);
    let values = numbers(SHAPE.kv_heads, TOKENS, 2) + 0.3;
    let queries = numbers(SHAPE.query_heads, STEPS, 3) * 3.0;

    let mut engine = Engine::new(&pipeline)?;
    engine.append(&keys, &values)?;
    let options = Options { storage: Storage::Bf16, threads: Some(1), ..Options::default() };
    let mut library = Cpu::default().start(&pipeline, 0, SHAPE, &options)?;
    library.append(keys.view(), values.view())?;

    println!("Milliseconds, and the largest error of a head:\n");
    println!("step   read   library's cache   library's kernels   engine's kernels");
    for step in 0..STEPS {
        let query = queries.slice(s![.., step..=step, ..]);
        let group_queries = query.index_axis(Axis(1), 0);
        let dense = engine.dense(group_queries)?;
        let (output, library_time) = timed(|| library.attend(query, None));
        let output = output?;
        let out: Vec<Array1<f64>> =
            output.out.outer_iter().map(|head| head.row(0).mapv(f64::from)).collect();
        let (by_kernels, kernel_time) = timed(|| engine.attend(group_queries, step as u32));
        let (by_loops, loop_time) = timed(|| engine.attend_by_loops(group_queries, step as u32));
        let read = output.rows.iter().map(RowReport::density_of_group).fold(0.0, f64::max);
        let shown =
            |out: &[Array1<f64>], ms: f64| format!("{ms:.2} ms, {:.4}", largest_error(out, &dense));
        println!(
            "{step:>4}   {:>4.1} %  {:>15}   {:>17}   {:>16}",
            100.0 * read,
            shown(&out, library_time),
            shown(&by_kernels?, kernel_time),
            shown(&by_loops?, loop_time)
        );
    }
    Ok(())
}

/// Returns the result of some work, and its time in milliseconds.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begin = Instant::now();
    let result = work();
    (result, 1e3 * begin.elapsed().as_secs_f64())
}

/// An engine with one layer.
struct Engine {
    /// Pages of all KV heads, `[pages][rows · ROW]`.
    pool: Vec<bf16>,
    caches: Vec<PagedCache>,
    /// One pipeline for each KV head, with the selectors' indexes of its keys.
    pipelines: Vec<Pipeline>,
}

/// Keys and values of one KV head.
#[derive(Default)]
struct PagedCache {
    /// Block table: the page numbers in the pool.
    table: Vec<u32>,
    len: usize,
}

impl Engine {
    fn new(config: &Arc<PipelineConfig>) -> vattention::Result<Self> {
        let pipeline = |kv_head| {
            let site = Site { seed: config.seed, sequence: 0, layer: 0, kv_head, shape: SHAPE };
            Pipeline::new(config, site)
        };
        let pipelines = (0..SHAPE.kv_heads).map(pipeline).collect::<Result<_, _>>()?;
        let caches = (0..SHAPE.kv_heads).map(|_| PagedCache::default()).collect();
        Ok(Self { pool: Vec::new(), caches, pipelines })
    }

    /// Stores new tokens, `[kv_heads, new, dim]`, and appends them to the selectors' indexes as
    /// stored.
    fn append(&mut self, keys: &Array3<f32>, values: &Array3<f32>) -> vattention::Result<()> {
        let new = keys.outer_iter().zip(values.outer_iter());
        for ((cache, pipeline), (keys, values)) in
            self.caches.iter_mut().zip(&mut self.pipelines).zip(new)
        {
            let first = cache.len;
            cache.store(&mut self.pool, keys, values);
            let (keys, values) = cache.views(&self.pool)?;
            let new = first..cache.len;
            let (keys, values) = (keys.range(new.clone()), values.range(new));
            pipeline.append(&NewTokens { first, keys, values, classes: None })?;
        }
        Ok(())
    }

    /// Attends from one query of each head, `[query_heads, head_dim]`, with the library's kernels.
    fn attend(
        &self,
        queries: ArrayView2<'_, f32>,
        step: u32,
    ) -> vattention::Result<Vec<Array1<f64>>> {
        let mut outputs = Vec::new();
        self.for_each_head(queries, step, |pipeline, step| {
            let head = HeadInput { pipeline, step: *step, listed: false };
            let output = Cpu::execute_step(&head, FallBack::ByCount)?;
            outputs.extend(output.rows.iter().map(|row| Array1::from(row.sums.sums.output())));
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Attends with the engine's own loops.
    fn attend_by_loops(
        &self,
        queries: ArrayView2<'_, f32>,
        step: u32,
    ) -> vattention::Result<Vec<Array1<f64>>> {
        let mut out = Vec::new();
        self.for_each_head(queries, step, |pipeline, step| {
            // `reading` has the token lists and the inclusion probabilities.
            let reading: Reading = pipeline.read(step)?;
            for row in step.rows() {
                let list = reading.list(row.member());
                let weighted = list.indices.iter().zip(&list.probabilities);
                let weighted = weighted.map(|(&token, &p)| (token as usize, 1.0 / f64::from(p)));
                out.push(sum_up(step, row.member(), weighted));
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Dense attention of each query.
    fn dense(&self, queries: ArrayView2<'_, f32>) -> vattention::Result<Vec<Array1<f64>>> {
        let mut out = Vec::new();
        self.for_each_head(queries, 0, |_, step| {
            let everything = || (0..step.visible).map(|token| (token, 1.0));
            out.extend((0..SHAPE.group()).map(|member| sum_up(step, member, everything())));
            Ok(())
        })?;
        Ok(out)
    }

    /// Calls `call` with each KV head's pipeline, and a step of its group's queries over its cache.
    fn for_each_head(
        &self,
        queries: ArrayView2<'_, f32>,
        step: u32,
        mut call: impl FnMut(&Pipeline, &Step<'_>) -> vattention::Result<()>,
    ) -> vattention::Result<()> {
        let groups = queries.axis_chunks_iter(Axis(0), SHAPE.group());
        for ((cache, pipeline), queries) in self.caches.iter().zip(&self.pipelines).zip(groups) {
            let (keys, values) = cache.views(&self.pool)?;
            let scaled: Vec<f32> = queries.iter().map(|q| q * SHAPE.default_scale()).collect();
            let (site, visible) = (pipeline.site(), cache.len);
            call(pipeline, &Step { visible, step, ..Step::new(site, &scaled, keys, values) })?;
        }
        Ok(())
    }
}

/// Horvitz-Thompson estimate `(Σ e v / p) / (Σ e / p)` of a query head's output, from tokens and
/// their weights `1 / p`.
fn sum_up(
    step: &Step<'_>,
    member: usize,
    weighted: impl Iterator<Item = (usize, f64)>,
) -> Array1<f64> {
    let row = step.row(member);
    let mut sums = Softmax::new(SHAPE.value_dim);
    let mut value = vec![0.0; SHAPE.value_dim];
    for (token, weight) in weighted {
        step.values.copy_row(token, &mut value);
        sums.add(row.logit(token).into(), weight, &value);
    }
    sums.output().into()
}

impl PagedCache {
    fn store(
        &mut self,
        pool: &mut Vec<bf16>,
        keys: ArrayView2<'_, f32>,
        values: ArrayView2<'_, f32>,
    ) {
        for (key, value) in keys.outer_iter().zip(values.outer_iter()) {
            if self.len.is_multiple_of(PAGE.rows) {
                self.table.push((pool.len() / PAGE.stride) as u32);
                pool.resize(pool.len() + PAGE.stride, bf16::ZERO);
            }
            let page = self.table[self.len / PAGE.rows] as usize;
            let row = page * PAGE.stride + self.len % PAGE.rows * ROW;
            let numbers = key.iter().chain(&value).map(|&x| bf16::from_f32(x));
            pool[row..row + ROW].iter_mut().zip(numbers).for_each(|(stored, x)| *stored = x);
            self.len += 1;
        }
    }

    /// Keys and values, borrowed from the pool in their layout.
    fn views<'a>(&'a self, pool: &'a [bf16]) -> vattention::Result<(Tokens<'a>, Tokens<'a>)> {
        let rows = Tokens::paged(pool, &self.table, PAGE, self.len, ROW)?;
        Ok((rows.columns(0..SHAPE.head_dim), rows.columns(SHAPE.head_dim..ROW)))
    }
}

/// Largest `|x − y| / |y|` of any head.
fn largest_error(x: &[Array1<f64>], y: &[Array1<f64>]) -> f64 {
    let norm = |x: &Array1<f64>| x.dot(x).sqrt();
    x.iter().zip(y).map(|(x, y)| norm(&(x - y)) / norm(y)).fold(0.0, f64::max)
}

/// Pseudo-random numbers between −1 and 1, `[heads, tokens, 64]`, the same in every run.
fn numbers(heads: usize, tokens: usize, seed: u32) -> Array3<f32> {
    let mut state = seed;
    Array3::from_shape_simple_fn((heads, tokens, 64), || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    })
}
