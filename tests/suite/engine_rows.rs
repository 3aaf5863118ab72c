//! Steps over rows in an engine's own pages equal steps over the library's cache.

use std::sync::Arc;

use crate::common::{normal, root};
use half::{bf16, f16};
use ndarray::{Array3, ArrayView2, s};
use vattention::backends::{Cpu, HeadInput, HeadOutput};
use vattention::config::{Loader, load};
use vattention::engine::{
    AttentionWeights, Element, NewTokens, PageLayout, Pipeline, PromptQueries, Site, SoftmaxForm,
    Step, Tokens, round_row,
};
use vattention::{Backend, FallBack, Options, PipelineConfig, Shape, Storage, TokenClass};

const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 64, value_dim: 96 };
const TOKENS: usize = 3000;
const STEPS: usize = 3;

/// Number of tokens visible to a step: all tokens at the last one.
fn visible(step: usize) -> usize {
    TOKENS - 7 * (STEPS - 1 - step)
}

/// Pages of an engine, `[pages][rows · heads · dim]`, in which the vectors of all KV heads of a
/// token lie side by side.
struct Pages<E> {
    numbers: Vec<Vec<E>>,
    /// The pages in one pool, in another order and with a gap after each, and the block table.
    pool: Option<(Vec<E>, Vec<u32>)>,
    /// Scales of the rows of each head; empty if the numbers have no scales.
    scales: Vec<Vec<f32>>,
    rows: usize,
    heads: usize,
    dim: usize,
}

/// A number type of an engine's pages.
trait PageElement: Element + 'static {
    const STORAGE: Storage;
    /// Number that no kernel may read.
    const GAP: Self;

    /// Converts a row; the second part is its scale, if it has one.
    fn convert(row: &[f32]) -> (Vec<Self>, Option<f32>);
}

impl PageElement for f32 {
    const STORAGE: Storage = Storage::F32;
    const GAP: Self = Self::NAN;

    fn convert(row: &[f32]) -> (Vec<Self>, Option<f32>) {
        (row.to_vec(), None)
    }
}

impl PageElement for f16 {
    const STORAGE: Storage = Storage::F16;
    const GAP: Self = Self::NAN;

    fn convert(row: &[f32]) -> (Vec<Self>, Option<f32>) {
        (row.iter().map(|&x| Self::from_f32(x)).collect(), None)
    }
}

impl PageElement for bf16 {
    const STORAGE: Storage = Storage::Bf16;
    const GAP: Self = Self::NAN;

    fn convert(row: &[f32]) -> (Vec<Self>, Option<f32>) {
        (row.iter().map(|&x| Self::from_f32(x)).collect(), None)
    }
}

impl PageElement for i8 {
    const STORAGE: Storage = Storage::Q8;
    const GAP: Self = Self::MIN;

    fn convert(row: &[f32]) -> (Vec<Self>, Option<f32>) {
        let mut integers = vec![0; row.len()];
        let scale = round_row(row, &mut integers);
        (integers, Some(scale))
    }
}

impl<E: PageElement> Pages<E> {
    /// Creates pages of `vectors` `[heads, tokens, _]`, each padded with zeros to `dim`.
    fn new(vectors: &Array3<f32>, dim: usize, rows: usize) -> Self {
        let (heads, tokens, unpadded) = vectors.dim();
        let (mut numbers, mut scales) = (Vec::new(), vec![Vec::new(); heads]);
        for token in 0..tokens {
            if token % rows == 0 {
                numbers.push(Vec::new());
            }
            let page = numbers.last_mut().unwrap();
            for (head, scales) in scales.iter_mut().enumerate() {
                let mut row = vectors.slice(s![head, token, ..]).to_vec();
                row.resize(dim.max(unpadded), 0.0);
                let (row, scale) = E::convert(&row);
                page.extend(row);
                scales.extend(scale);
            }
        }
        Self { numbers, pool: None, scales, rows, heads, dim }
    }

    /// Returns the same rows in a pool with a block table.
    fn pooled(mut self) -> Self {
        let stride = self.stride();
        let (mut pool, mut table) = (Vec::new(), Vec::new());
        for page in self.numbers.iter().rev() {
            table.push(table.len() as u32);
            pool.extend_from_slice(page);
            pool.resize(table.len() * stride, E::GAP);
        }
        table.reverse();
        self.pool = Some((pool, table));
        self
    }

    /// Number of elements from page to page of the pool.
    fn stride(&self) -> usize {
        self.rows * self.heads * self.dim + 7
    }

    fn slices(&self) -> Vec<&[E]> {
        self.numbers.iter().map(Vec::as_slice).collect()
    }

    /// Vectors of one head; the last `zeros` elements are padding.
    fn view<'a>(
        &'a self,
        slices: &'a [&'a [E]],
        head: usize,
        len: usize,
        zeros: usize,
    ) -> Tokens<'a> {
        let (first, dim) = (head * self.dim, self.heads * self.dim);
        let page = PageLayout { rows: self.rows, stride: self.stride(), row_stride: dim };
        let all = match &self.pool {
            Some((pool, table)) => Tokens::paged(pool, table, page, len, dim).unwrap(),
            None => Tokens::blocks(slices, self.rows, len, dim),
        };
        let vectors = all.columns(first..first + self.dim - zeros).padded(zeros);
        match self.scales[head].get(..len) {
            Some(scales) => vectors.with_scales(scales).unwrap(),
            None => vectors,
        }
    }
}

/// State of an engine: the cache and the pipelines of a sequence, and queries.
struct Engine<E> {
    shape: Shape,
    keys: Pages<E>,
    values: Pages<E>,
    queries: Array3<f32>,
    pipelines: Vec<Pipeline>,
}

impl<E: PageElement> Engine<E> {
    /// Outputs of each KV head at each step.
    fn run(mut self, fall_back: FallBack) -> Vec<HeadOutput> {
        let Shape { head_dim, value_dim, kv_heads, .. } = self.shape;
        let (keys, values) = (self.keys.slices(), self.values.slices());
        let (key_zeros, value_zeros) = (self.keys.dim - head_dim, self.values.dim - value_dim);
        let mut outputs = Vec::new();
        for step in 0..STEPS {
            for kv_head in 0..kv_heads {
                let pipeline = &mut self.pipelines[kv_head];
                let keys = self.keys.view(&keys, kv_head, TOKENS, key_zeros);
                let values = self.values.view(&values, kv_head, TOKENS, value_zeros);
                if step == 0 {
                    let new = NewTokens { first: 0, keys, values, classes: None };
                    pipeline.append(&new).unwrap();
                }
                let group = kv_head * self.shape.group()..(kv_head + 1) * self.shape.group();
                let queries: ArrayView2<'_, f32> = self.queries.slice(s![group, step, ..]);
                let queries: Vec<f32> =
                    queries.iter().map(|q| q * self.shape.default_scale()).collect();
                let site = *pipeline.site();
                let step = Step {
                    visible: visible(step),
                    step: step as u32,
                    ..Step::new(&site, &queries, keys, values)
                };
                let head = HeadInput { pipeline, step, listed: true };
                let output = Cpu::execute_step(&head, fall_back).unwrap();
                if pipeline.needs_feedback() {
                    for (member, row) in output.rows.iter().enumerate() {
                        let tokens = &row.list.as_ref().unwrap().indices;
                        let attended =
                            AttentionWeights { tokens, weights: &row.sums.weights(), sink: 0.0 };
                        pipeline.feedback(&step.row(member), &attended);
                    }
                }
                outputs.push(output);
            }
        }
        outputs
    }
}

fn pipelines(config: &Arc<PipelineConfig>, shape: Shape) -> Vec<Pipeline> {
    let pipeline = |kv_head| {
        let site = Site { seed: config.seed, sequence: 0, layer: 0, kv_head, shape };
        Pipeline::new(config, site).unwrap()
    };
    (0..shape.kv_heads).map(pipeline).collect()
}

/// Compares outputs, token lists and reports of the engine with those of the library.
fn compare<E: PageElement>(config: &Arc<PipelineConfig>, shape: Shape, rows: usize) {
    let storage = E::STORAGE;
    let context = format!("{}, {storage:?}, pages of {rows}, {shape:?}", config.name);
    let pages = |vectors: &Array3<f32>, dim: usize, pooled: bool| {
        let pages = Pages::<E>::new(vectors, dim, rows);
        if pooled { pages.pooled() } else { pages }
    };
    let keys = normal((shape.kv_heads, TOKENS, shape.head_dim), 1);
    let values = normal((shape.kv_heads, TOKENS, shape.value_dim), 2);
    let queries = normal((shape.query_heads, STEPS, shape.head_dim), 3);
    for (fall_back, pooled) in [
        (FallBack::Never, false),
        (FallBack::ByCount, false),
        (FallBack::Never, true),
        (FallBack::ByCount, true),
    ] {
        let options = Options { storage, fall_back, return_selection: true, ..Options::default() };
        let mut library = Cpu::default().start(config, 0, shape, &options).unwrap();
        library.append(keys.view(), values.view()).unwrap();
        let visible: Vec<usize> = (0..STEPS).map(visible).collect();
        let want = library.attend(queries.view(), Some(&visible)).unwrap();
        let padded = |dim: usize| dim.next_multiple_of(32);
        let engine = Engine {
            shape,
            keys: pages(&keys, padded(shape.head_dim), pooled),
            values: pages(&values, padded(shape.value_dim), pooled),
            queries: queries.clone(),
            pipelines: pipelines(config, shape),
        };
        let selection = want.selection.as_ref().unwrap();
        for (i, output) in engine.run(fall_back).iter().enumerate() {
            let (step, kv_head) = (i / shape.kv_heads, i % shape.kv_heads);
            for (member, row) in output.rows.iter().enumerate() {
                let head = kv_head * shape.group() + member;
                let out: Vec<f32> = row.sums.sums.output().iter().map(|&x| x as f32).collect();
                assert_eq!(want.out.slice(s![head, step, ..]).to_vec(), out, "{context}");
                let place = step * shape.query_heads + head;
                assert_eq!(want.rows[place], row.report, "{context}");
                let list = row.list.as_ref().unwrap();
                assert_eq!(selection.row(place), (&list.indices[..], &list.probabilities[..]));
            }
        }
    }
}

/// Keys and values have separate pages, whose numbers of rows are powers of two or not. The rows of
/// a head alternate with those of other heads, with and without padding.
#[test]
fn pages_of_an_engine_give_the_librarys_results() {
    let padded = Shape { head_dim: 40, value_dim: 24, ..SHAPE };
    for name in ["dense", "oracle-top-k", "vattention-oracle", "priority", "stratified", "h2o"] {
        let config = load(root("configs").join(format!("{name}.toml"))).unwrap();
        for shape in [SHAPE, padded] {
            compare::<f32>(&config, shape, 64);
            compare::<f16>(&config, shape, 20);
            compare::<bf16>(&config, shape, 16);
            compare::<i8>(&config, shape, 48);
        }
    }
}

/// Messages name the expected shape or type.
#[test]
fn rows_that_kernels_cannot_read_are_errors() {
    let config = Loader::default().parse("dense.toml", "").unwrap();
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 40, value_dim: 32 };
    let pipeline = &pipelines(&config, shape)[0];
    let (wide, half) = (vec![1.0_f32; 64 * 10], vec![f16::ONE; 64 * 10]);
    let integers = vec![1_i8; 64 * 10];
    let integer_keys = Tokens::strided(&integers, 10, 40, 64).padded(24);
    let scaled_keys = integer_keys.with_scales(&[0.5; 10]).unwrap();
    let integer_values = Tokens::new(&integers, 10, 32);
    let keys = Tokens::strided(&wide, 10, 40, 64).padded(24);
    let values = Tokens::new(&wide, 10, 32);
    let error_of = |keys, values, visible, queries: &[f32]| {
        let step = Step { visible, ..Step::new(pipeline.site(), queries, keys, values) };
        let head = HeadInput { pipeline, step, listed: false };
        Cpu::execute_step(&head, FallBack::Never)
            .map_or_else(|error| error.to_string(), |_| String::new())
    };
    let queries = [0.5; 80];
    assert_eq!(error_of(keys, values, 10, &queries), "");
    let unpadded = Tokens::strided(&wide, 10, 40, 64);
    for (error, part) in [
        (error_of(unpadded, values, 10, &queries), "a multiple of 32"),
        (error_of(keys, Tokens::new(&half, 10, 32), 10, &queries), "the number type of the keys"),
        (error_of(scaled_keys, values, 10, &queries), "the number type of the keys"),
        (error_of(integer_keys, integer_values, 10, &queries), "scales of the keys"),
        (error_of(scaled_keys, integer_values, 10, &queries), "scales of the values"),
        (error_of(keys, values.range(0..9), 10, &queries), "values"),
        (error_of(keys, Tokens::new(&wide, 10, 64), 10, &queries), "value_dim"),
        (error_of(values, values, 10, &queries), "head_dim"),
        (error_of(keys, values, 11, &queries), "1 to 10"),
        (error_of(keys, values, 0, &queries), "1 to 10"),
        (error_of(keys, values, 10, &queries[..40]), "queries"),
    ] {
        assert!(error.contains(part), "{part}: {error:?}");
    }
}

/// One KV head of an engine with 200 tokens.
struct OneHead {
    numbers: Vec<f32>,
    queries: Vec<f32>,
}

impl OneHead {
    const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 32, value_dim: 32 };
    const TOKENS: usize = 200;

    fn new() -> Self {
        let random = |rows, seed| normal((1, rows, 32), seed).into_raw_vec_and_offset().0;
        Self { numbers: random(Self::TOKENS, 1), queries: random(2, 2) }
    }

    fn rows(&self) -> Tokens<'_> {
        Tokens::new(&self.numbers, Self::TOKENS, 32)
    }

    fn make_pipeline(text: &str) -> Pipeline {
        let config = Loader::default().parse("engine.toml", text).unwrap();
        pipelines(&config, Self::SHAPE).remove(0)
    }

    fn append(&self, pipeline: &mut Pipeline, classes: Option<&[TokenClass]>) -> String {
        let (keys, values) = (self.rows(), self.rows());
        let appended = pipeline.append(&NewTokens { first: 0, keys, values, classes });
        appended.map_or_else(|error| error.to_string(), |()| String::new())
    }

    fn observe(&self, pipeline: &mut Pipeline) {
        let site = *pipeline.site();
        let queries = ndarray::ArrayView3::from_shape((2, 1, 32), &self.queries).unwrap();
        let (keys, values) = (self.rows(), self.rows());
        pipeline.observe(&PromptQueries {
            site: &site,
            queries,
            keys,
            values,
            form: SoftmaxForm::default(),
        });
    }

    /// Error message of a step, which is the same with kernels and by the definition; empty if the
    /// step succeeds.
    fn step(&self, pipeline: &mut Pipeline, number: u32, feedback: bool) -> String {
        let (site, keys, values) = (*pipeline.site(), self.rows(), self.rows());
        let (queries, visible) = (&self.queries[..], Self::TOKENS);
        let step = Step { visible, step: number, ..Step::new(&site, queries, keys, values) };
        let output =
            Cpu::execute_step(&HeadInput { pipeline, step, listed: true }, FallBack::Never);
        let reading = pipeline.read(&step).map_err(|error| error.to_string());
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                assert_eq!(reading.err(), Some(error.to_string()));
                return error.to_string();
            }
        };
        reading.unwrap();
        for (member, row) in output.rows.iter().enumerate().filter(|_| feedback) {
            let tokens = &row.list.as_ref().unwrap().indices;
            let attended = AttentionWeights { tokens, weights: &row.sums.weights(), sink: 0.0 };
            pipeline.feedback(&step.row(member), &attended);
        }
        String::new()
    }
}

/// An engine that omits classes, prompts or feedback gets an error that names the missing call, not
/// a panic or dense steps.
#[test]
fn missing_classes_prompts_or_feedback_are_errors() {
    let head = OneHead::new();
    let mut fastgen = OneHead::make_pipeline("[[selectors]]\ntype = \"fastgen\"");
    assert!(head.append(&mut fastgen, None).contains("`fastgen` needs the class"));
    let few = [TokenClass::Other; 3];
    assert!(head.append(&mut fastgen, Some(&few)).contains("classes of new tokens"));
    assert_eq!(head.append(&mut fastgen, Some(&[TokenClass::Other; OneHead::TOKENS])), "");
    let error = head.step(&mut fastgen, 0, true);
    assert!(error.contains("`fastgen` learns from the last queries"), "{error}");

    let mut snapkv = OneHead::make_pipeline("[[selectors]]\ntype = \"snapkv\"\nsize = 40");
    assert_eq!(head.append(&mut snapkv, None), "");
    let error = head.step(&mut snapkv, 0, false);
    assert!(error.contains("`snapkv`") && error.contains("call `observe`"), "{error}");
    head.observe(&mut snapkv);
    assert_eq!([0, 1, 2].map(|step| head.step(&mut snapkv, step, false)), ["", "", ""]);

    let mut h2o = OneHead::make_pipeline("[[selectors]]\ntype = \"h2o\"");
    assert_eq!(head.append(&mut h2o, None), "");
    assert_eq!([0, 0].map(|step| head.step(&mut h2o, step, false)), ["", ""], "the first step");
    let error = head.step(&mut h2o, 1, false);
    assert!(error.contains("`h2o`") && error.contains("none for step 0"), "{error}");
    assert_eq!(head.step(&mut h2o, 0, true), "");
    assert_eq!([1, 2].map(|step| head.step(&mut h2o, step, true)), ["", ""]);

    let mut dense = OneHead::make_pipeline("");
    assert_eq!([0, 1].map(|step| head.step(&mut dense, step, false)), ["", ""]);
    let narrow = Tokens::new(&head.numbers, 10, 16);
    let new = NewTokens { first: 0, keys: head.rows(), values: narrow, classes: None };
    assert!(dense.append(&new).unwrap_err().to_string().contains("value_dim"));
    let new = NewTokens { values: head.rows().range(0..9), ..new };
    assert!(dense.append(&new).unwrap_err().to_string().contains("new values"));
}
