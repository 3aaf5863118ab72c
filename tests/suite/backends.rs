//! All pipelines of `configs/` on all backends: rule 10 of `crates/core/tests/suite/rules.rs`.

use crate::common;
use std::sync::Arc;

use crate::common::agreement::{compare_picks, compare_reports};
use crate::common::{MODEL, MODEL_LAYER};
use ndarray::{Array2, Array3, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::{StandardNormal, Uniform};
use rand_chacha::ChaCha8Rng;
use vattention::backends::{Cpu, Reference};
use vattention::config::load;
use vattention::{
    Attention, Backend, FallBack, Kind, Options, Output, PipelineConfig, Shape, Storage, backend,
    engine::{Pipeline, round_row},
    plugin::Site,
};

/// Shapes with and without groups, and with values shorter and longer than keys. The last shape is
/// that of the model for which the files of `weights/` were trained.
pub(crate) const SHAPES: [Shape; 5] = [
    Shape { query_heads: 3, kv_heads: 3, head_dim: 16, value_dim: 16 },
    Shape { query_heads: 8, kv_heads: 2, head_dim: 16, value_dim: 12 },
    Shape { query_heads: 4, kv_heads: 1, head_dim: 16, value_dim: 40 },
    Shape { query_heads: 2, kv_heads: 2, head_dim: 64, value_dim: 64 },
    MODEL,
];

const TOKENS: usize = 2300;

/// Keys, values and queries of a layer.
pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) keys: Array3<f32>,
    pub(crate) values: Array3<f32>,
    pub(crate) queries: Array3<f32>,
    /// Number of tokens visible to each query.
    visible: Vec<usize>,
}

impl World {
    /// Whole numbers from −2 to 2, whose products are exact in every precision.
    pub(crate) fn small_integers(shape: Shape, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let numbers = Uniform::new_inclusive(-2_i8, 2).unwrap();
        Self::new(shape, |dim| Array3::random_using(dim, numbers, &mut rng).mapv(f32::from))
    }

    pub(crate) fn normal(shape: Shape, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self::new(shape, |dim| Array3::random_using(dim, StandardNormal, &mut rng))
    }

    fn new(shape: Shape, mut make: impl FnMut((usize, usize, usize)) -> Array3<f32>) -> Self {
        Self {
            shape,
            keys: make((shape.kv_heads, TOKENS, shape.head_dim)),
            values: make((shape.kv_heads, TOKENS, shape.value_dim)),
            queries: make((shape.query_heads, 3, shape.head_dim)),
            visible: vec![TOKENS - 2, 700, TOKENS],
        }
    }

    pub(crate) fn start(
        &self,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Box<dyn Attention> {
        let options =
            Options { return_selection: true, fall_back: FallBack::Never, ..options.clone() };
        let mut attention = backend.start(pipeline, MODEL_LAYER, self.shape, &options).unwrap();
        // The number of calls must not matter.
        for part in [0..1000, 1000..1001, 1001..TOKENS] {
            let keys = self.keys.slice(s![.., part.clone(), ..]);
            common::append(&mut *attention, keys, self.values.slice(s![.., part, ..])).unwrap();
        }
        attention
    }

    pub(crate) fn run(
        &self,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        options: &Options,
    ) -> Output {
        let mut attention = self.start(backend, pipeline, options);
        attention.attend(self.queries.view(), Some(&self.visible)).unwrap()
    }

    /// Asserts that outputs equal the f64 sums over the picks that a backend reports, to within
    /// 1e-5 of the largest value. Rows of 8 bits are multiplied by queries and weights of 16 bits.
    pub(crate) fn check_sums(&self, context: &str, output: &Output, options: &Options) {
        let stored = [&self.keys, &self.values].map(|rows| round(rows, options.storage));
        let largest = stored[1].fold(0.0_f64, |largest, v| largest.max(v.abs()));
        let precision = if options.storage == Storage::Q8 { 2.0_f64.powi(-11) } else { 1e-5 };
        for head in 0..self.shape.query_heads {
            for t in 0..self.visible.len() {
                let (want, log_d) = self.sums(output, [head, t], &stored, options);
                for (&got, want) in output.out.slice(s![head, t, ..]).iter().zip(want) {
                    let apart = (f64::from(got) - want).abs();
                    assert!(apart <= precision * largest, "{context}: {got} for {want}");
                }
                let got = f64::from(output.log_denominator[[head, t]]);
                let rounding = precision.max(1e-6 * log_d.abs());
                assert!((got - log_d).abs() < rounding, "{context}: {got} for {log_d}");
            }
        }
    }

    /// Computes `N / D` and `ln D` of one row in f64, over the picks that a backend reports.
    fn sums(
        &self,
        output: &Output,
        [head, t]: [usize; 2],
        [keys, values]: &[Array3<f64>; 2],
        options: &Options,
    ) -> (Vec<f64>, f64) {
        let scale = f64::from(options.scale.unwrap_or_else(|| self.shape.default_scale()));
        let selection = output.selection.as_ref().unwrap();
        let (indices, probabilities) = selection.row(t * self.shape.query_heads + head);
        let kv_head = head / self.shape.group();
        let query = self.queries.slice(s![head, t, ..]).mapv(f64::from);
        let logit = |token: usize| {
            let logit = keys.slice(s![kv_head, token, ..]).dot(&query) * scale;
            let cap = |cap: f32| f64::from(cap) * (logit / f64::from(cap)).tanh();
            options.soft_cap.map_or(logit, cap)
        };
        let logits: Vec<f64> = indices.iter().map(|&token| logit(token as usize)).collect();
        let sinks = options.sink_logits.as_deref();
        let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[head].into());
        let shift = logits.iter().copied().fold(sink, f64::max);
        let mut n = vec![0.0; self.shape.value_dim];
        let mut d = (sink - shift).exp();
        for ((&token, &p), logit) in indices.iter().zip(probabilities).zip(&logits) {
            let weight = (logit - shift).exp() / f64::from(p);
            d += weight;
            let value = values.slice(s![kv_head, token as usize, ..]);
            n.iter_mut().zip(value).for_each(|(n, &v)| *n += weight * v);
        }
        (n.into_iter().map(|n| n / d).collect(), shift + d.ln())
    }
}

fn round(rows: &Array3<f32>, storage: Storage) -> Array3<f64> {
    match storage {
        Storage::F32 => rows.mapv(f64::from),
        Storage::F16 => rows.mapv(|x| half::f16::from_f32(x).to_f64()),
        Storage::Bf16 => rows.mapv(|x| half::bf16::from_f32(x).to_f64()),
        Storage::Q8 => {
            let mut rounded = rows.mapv(f64::from);
            for (row, mut rounded) in rows.rows().into_iter().zip(rounded.rows_mut()) {
                let mut integers = vec![0; row.len()];
                let scale = f64::from(round_row(&row.to_vec(), &mut integers));
                rounded.iter_mut().zip(integers).for_each(|(x, i)| *x = f64::from(i) * scale);
            }
            rounded
        }
    }
}

/// Calls `check` with each config that can run on a shape. Configs with weights run only on the
/// model's shape.
pub(crate) fn for_each_config(shape: Shape, mut check: impl FnMut(&str, &Arc<PipelineConfig>)) {
    for path in common::configs() {
        if shape == MODEL || !common::is_trained(&path) {
            check(&path.file_stem().unwrap().to_string_lossy(), &load(&path).unwrap());
        }
    }
}

/// On exact logits, selectors pick the same tokens on all backends, and samples are nested.
#[test]
fn picks_are_equal_on_small_integers() {
    let reference = backend("reference").unwrap();
    for (seed, shape) in (0..).zip(SHAPES) {
        let world = World::small_integers(shape, seed);
        for_each_config(shape, |name, pipeline| {
            // With a power of two as scale, sums of products stay exact in any order.
            let exact = Options { scale: Some(0.25), ..Options::default() };
            let expected = world.run(&*reference, pipeline, &exact);
            for backend in common::backends() {
                for storage in storages(&*backend, seed) {
                    let options = Options { storage, ..exact.clone() };
                    let output = world.run(&*backend, pipeline, &options);
                    let context = format!("{name} on {}", backend.name());
                    compare_reports(&context, shape.group(), &output, &expected);
                    world.check_sums(&context, &output, &options);
                    if pipeline.estimator.is_some() {
                        compare_picks(&context, &output, &expected);
                    } else {
                        assert_eq!(output.selection, expected.selection, "{context}");
                    }
                }
            }
        });
    }
}

/// Rows of 8 bits whose scale is 1 are exact, too, so that the tokens are those of f32.
#[test]
fn picks_are_equal_on_integers_of_8_bits() {
    let mut world = World::small_integers(SHAPES[1], 11);
    // The largest element of a row sets its scale; no query depends on it.
    for rows in [&mut world.keys, &mut world.values] {
        rows.slice_mut(s![.., .., 3]).fill(127.0);
    }
    world.queries.slice_mut(s![.., .., 3]).fill(0.0);
    for_each_config(world.shape, |name, pipeline| {
        let exact = Options { scale: Some(0.25), ..Options::default() };
        let options = Options { storage: Storage::Q8, ..exact.clone() };
        // The index of this pipeline copies keys of f32, and reads keys of 8 bits in place.
        let indexes_stored_keys = name == "priority-rigorous";
        let same_index = if indexes_stored_keys { &options } else { &exact };
        let expected = world.run(&Reference, pipeline, same_index);
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            let output = world.run(backend, pipeline, &options);
            let context = format!("{name} on {}", backend.name());
            compare_reports(&context, world.shape.group(), &output, &expected);
            world.check_sums(&context, &output, &options);
            compare_picks(&context, &output, &expected);
        }
    });
}

/// All storages that store small integers exactly; on a GPU, which may be emulated and slow, one of
/// them, which depends on `turn`.
fn storages(backend: &dyn Backend, turn: u64) -> Vec<Storage> {
    let all = Storage::FLOATS;
    if backend.name() == "cuda" { vec![all[turn as usize % 3]] } else { all.to_vec() }
}

/// Outputs equal f64 sums over the reported picks. An emulated GPU is slow, so it runs each
/// pipeline in one shape only.
#[test]
fn outputs_are_the_sums_over_the_reported_picks() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let world = World::normal(shape, 100 + seed as u64);
        let storage = Storage::ALL[seed % 4];
        let options = Options { storage, ..Options::default() };
        let mut turn = 0..;
        for_each_config(shape, |name, pipeline| {
            let file = common::root(&format!("configs/{name}.toml"));
            let emulated = common::is_trained(&file) || turn.next().unwrap() % 4 == seed;
            let backends = common::backends();
            for backend in backends.iter().filter(|backend| emulated || backend.name() != "cuda") {
                let output = world.run(&**backend, pipeline, &options);
                let context = format!("{name} on {}", backend.name());
                world.check_sums(&context, &output, &options);
            }
        });
    }
}

/// Outputs have the same bits on any number of threads, and with one call per query or one call for
/// all queries.
#[test]
fn results_do_not_depend_on_threads_or_on_calls() {
    for shape in [SHAPES[1], MODEL] {
        let world = World::normal(shape, 7);
        for_each_config(shape, |name, pipeline| check_threads_and_calls(&world, name, pipeline));
    }
}

fn check_threads_and_calls(world: &World, name: &str, pipeline: &Arc<PipelineConfig>) {
    let cpu = backend("cpu").unwrap();
    let bits = |output: &Output| -> Vec<u32> {
        output.out.iter().chain(&output.log_denominator).map(|x| x.to_bits()).collect()
    };
    let expected = world.run(&*cpu, pipeline, &Options::default());
    for threads in [1, 2, 5] {
        let options = Options { threads: Some(threads), ..Options::default() };
        let output = world.run(&*cpu, pipeline, &options);
        assert_eq!(bits(&output), bits(&expected), "{name} on {threads} threads");
        assert_eq!(output.selection, expected.selection);
    }
    let mut attention = world.start(&*cpu, pipeline, &Options::default());
    for t in 0..3 {
        let queries = world.queries.slice(s![.., t..=t, ..]);
        let output = attention.attend(queries, Some(&world.visible[t..=t])).unwrap();
        let want: Array2<f32> = expected.out.slice(s![.., t, ..]).to_owned();
        assert_eq!(output.out.slice(s![.., 0, ..]), want, "{name}, query {t} alone");
    }
    if first_head(world, pipeline).depends_on_earlier_steps() {
        return;
    }
    // A sequence that begins at a later step draws the same tokens as this one at that step.
    let options = Options { first_step: 2, ..Options::default() };
    let mut later = world.start(&*cpu, pipeline, &options);
    let output = later.attend(world.queries.slice(s![.., 2..3, ..]), None).unwrap();
    assert_eq!(output.out.slice(s![.., 0, ..]), expected.out.slice(s![.., 2, ..]), "{name}");
}

/// Pipeline of the first KV head.
fn first_head(world: &World, pipeline: &Arc<PipelineConfig>) -> Pipeline {
    let site = Site { seed: 0, sequence: 0, layer: MODEL_LAYER, kv_head: 0, shape: world.shape };
    Pipeline::new(pipeline, site).unwrap()
}

/// Queries that see only a part of the tokens have the same results as in decoding token by token,
/// even if the limit is within a block or a page of an index.
#[test]
fn queries_with_limits_equal_decoding_token_by_token() {
    for path in common::configs() {
        let shape = if common::is_trained(&path) { MODEL } else { SHAPES[1] };
        let mut world = World::normal(shape, 9);
        world.visible = vec![TOKENS - 130, TOKENS - 100, TOKENS];
        let pipeline = load(&path).unwrap();
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            let together = world.run(backend, &pipeline, &Options::default());
            let options = Options { fall_back: FallBack::Never, ..Options::default() };
            let mut attention = backend.start(&pipeline, MODEL_LAYER, shape, &options).unwrap();
            for (t, &visible) in world.visible.iter().enumerate() {
                let new = s![.., attention.len()..visible, ..];
                let (keys, values) = (world.keys.slice(new), world.values.slice(new));
                common::append(&mut *attention, keys, values).unwrap();
                let queries = world.queries.slice(s![.., t..=t, ..]);
                let output = attention.attend(queries, None).unwrap();
                let context = format!("{} on {}, query {t}", path.display(), backend.name());
                assert_eq!(output.out, together.out.slice(s![.., t..=t, ..]), "{context}");
                let rows = &together.rows[t * shape.query_heads..][..shape.query_heads];
                assert_eq!(output.rows, rows, "{context}");
            }
        }
    }
}

/// A fork reads the same tokens as the original; with another sequence number it draws other
/// samples.
#[test]
fn forks_continue_with_the_same_tokens() {
    let world = World::normal(SHAPES[1], 8);
    let pipeline = load(common::root("configs/hybrid.toml")).unwrap();
    for backend in common::backends() {
        let mut original = world.start(&*backend, &pipeline, &Options::default());
        original.attend(world.queries.view(), None).unwrap();
        let mut same = original.fork(None).unwrap();
        let mut other = original.fork(Some(9)).unwrap();
        let extra = world.keys.slice(s![.., ..1, ..]);
        same.append(extra, world.values.slice(s![.., ..1, ..])).unwrap();
        assert_eq!((original.len(), same.len()), (TOKENS, TOKENS + 1));
        let mut same = original.fork(None).unwrap();
        let attend = |attention: &mut Box<dyn Attention>| {
            attention.attend(world.queries.view(), None).unwrap().selection.unwrap()
        };
        let next = attend(&mut original);
        assert_eq!(attend(&mut same), next);
        assert_ne!(attend(&mut other), next);
    }
}

/// A truncated sequence has the same results as one that never had the removed tokens, at the same
/// step. If selectors learn from steps, truncation is an error and changes nothing.
#[test]
fn truncated_tokens_leave_no_trace() {
    const KEPT: usize = TOKENS - 200;
    for path in common::configs() {
        let shape = if common::is_trained(&path) { MODEL } else { SHAPES[1] };
        let (world, pipeline) = (World::normal(shape, 10), load(&path).unwrap());
        let append = |attention: &mut Box<dyn Attention>, tokens: std::ops::Range<usize>| {
            let new = s![.., tokens, ..];
            let (keys, values) = (world.keys.slice(new), world.values.slice(new));
            common::append(&mut **attention, keys, values).unwrap();
        };
        let prompt = world.queries.slice(s![.., ..2, ..]);
        let attend = |attention: &mut Box<dyn Attention>, query: usize| {
            let output = attention.attend(world.queries.slice(s![.., query..=query, ..]), None);
            let Output { out, rows, selection, .. } = output.unwrap();
            (out, rows, selection)
        };
        // An emulated GPU is slow, so it runs three pipelines only: without an index, with one on
        // the device, and with one on the host.
        let emulated =
            ["dense", "quest", "hybrid"].contains(&path.file_stem().unwrap().to_str().unwrap());
        let backends = common::backends();
        for backend in backends.iter().filter(|backend| emulated || backend.name() != "cuda") {
            let options = |first_step| Options {
                first_step,
                storage: Storage::Bf16,
                return_selection: true,
                ..Options::default()
            };
            let start =
                |step| backend.start(&pipeline, MODEL_LAYER, shape, &options(step)).unwrap();
            let context = format!("{} on {}", path.display(), backend.name());
            let mut longer = start(0);
            append(&mut longer, 0..KEPT - 100);
            longer.observe(prompt).unwrap();
            append(&mut longer, KEPT - 100..TOKENS);
            attend(&mut longer, 0);
            longer.observe(world.queries.slice(s![.., 1.., ..])).unwrap();
            let learns = first_head(&world, &pipeline).needs_feedback();
            if learns && longer.truncate(KEPT).is_err() {
                let error = longer.truncate(KEPT).unwrap_err().to_string();
                assert!(error.contains("learns from steps"), "{error}");
                assert_eq!(longer.len(), TOKENS, "{context}");
                continue;
            }
            let mut fork = longer.fork(None).unwrap();
            let untouched = attend(&mut fork, 1);
            let mut fork = longer.fork(None).unwrap();
            let error = longer.truncate(TOKENS + 1).unwrap_err().to_string();
            assert!(error.contains(&format!("at most {TOKENS}")), "{error}");
            longer.truncate(TOKENS).unwrap();
            longer.truncate(KEPT).unwrap();
            let mut shorter = start(1);
            append(&mut shorter, 0..KEPT - 100);
            shorter.observe(prompt).unwrap();
            append(&mut shorter, KEPT - 100..KEPT);
            assert_eq!(longer.len(), KEPT);
            assert_eq!(attend(&mut longer, 1), attend(&mut shorter, 1), "{context}");
            append(&mut longer, KEPT..KEPT + 1);
            append(&mut shorter, KEPT..KEPT + 1);
            assert_eq!(attend(&mut longer, 2), attend(&mut shorter, 2), "{context}, next step");
            assert_eq!(longer.index_bytes(), shorter.index_bytes(), "{context}");
            longer.truncate(0).unwrap();
            assert!(longer.is_empty() && longer.attend(prompt, None).is_err(), "{context}");
            assert_eq!(attend(&mut fork, 1), untouched, "{context}, the fork");
        }
    }
}

/// Reports count the tokens of the selection, and their certificates match the pipeline's promise.
#[test]
fn reports_agree_with_selections() {
    let world = World::normal(MODEL, 9);
    let cpu = backend("cpu").unwrap();
    for_each_config(MODEL, |name, pipeline| {
        let output = world.run(&*cpu, pipeline, &Options::default());
        let selection = output.selection.as_ref().unwrap();
        for (i, row) in output.rows.iter().enumerate() {
            let (tokens, probabilities) = selection.row(i);
            assert_eq!(row.certain + row.sampled, tokens.len(), "{name}");
            assert_eq!(row.visible, world.visible[i / world.shape.query_heads]);
            let promise = pipeline.promise();
            let limited = pipeline.goal().is_some_and(|goal| goal.limit().is_some());
            let withheld = limited && row.certificate.has_only_bar();
            assert!(row.certificate.promise == promise || withheld || name == "dense", "{name}");
            assert_eq!(
                row.certificate.kind == Kind::Exact,
                // Independent draws may happen to contain all tokens.
                row.density() == 1.0 && probabilities.iter().all(|&p| p == 1.0),
                "{name}: {row:?}"
            );
        }
    });
}

/// Errors name the argument and the position.
#[test]
fn bad_input_is_an_error_and_changes_nothing() {
    let shape = SHAPES[1];
    let world = World::normal(shape, 10);
    let pipeline = load(common::root("configs/hybrid.toml")).unwrap();
    for backend in common::backends() {
        let options = Options { storage: Storage::F16, ..Options::default() };
        let mut attention = world.start(&*backend, &pipeline, &options);
        let mut untouched = attention.fork(None).unwrap();
        let (keys, values) = (world.keys.view(), world.values.view());
        let mut errors: Vec<String> = Vec::new();
        let mut refuse =
            |result: vattention::Result<()>| errors.push(result.unwrap_err().to_string());

        refuse(attention.append(keys.slice(s![..1, .., ..]), values));
        refuse(attention.append(keys, values.slice(s![.., ..5, ..])));
        refuse(attention.append(keys, keys));
        for bad in [f32::NAN, f32::INFINITY, 65_520.0] {
            let mut wrong = world.keys.clone();
            wrong[[1, 7, 3]] = bad;
            refuse(attention.append(wrong.view(), values));
            let mut wrong = world.values.clone();
            wrong[[0, 9, 2]] = bad;
            refuse(attention.append(keys, wrong.view()));
        }
        let queries = world.queries.view();
        refuse(attention.attend(queries.slice(s![.., .., ..4]), None).map(drop));
        refuse(attention.attend(queries, Some(&[1, 2])).map(drop));
        refuse(attention.attend(queries, Some(&[1, 2, 0])).map(drop));
        refuse(attention.attend(queries, Some(&[1, TOKENS + 1, 1])).map(drop));
        for bad in [f32::NAN, f32::NEG_INFINITY, 1e30] {
            let mut queries = world.queries.clone();
            queries[[3, 1, 2]] = bad;
            refuse(attention.attend(queries.view(), None).map(drop));
            refuse(attention.observe(queries.view()));
        }
        refuse(attention.observe(Array3::zeros((8, TOKENS + 1, 16)).view()));
        let empty = backend.start(&pipeline, 0, shape, &options);
        refuse(empty.unwrap().attend(queries, None).map(drop));
        let wrong = Shape { query_heads: 5, ..shape };
        refuse(backend.start(&pipeline, 0, wrong, &options).map(drop));
        refuse(backend.start(&pipeline, 4096, shape, &options).map(drop));
        let options = Options { scale: Some(f32::NAN), ..options };
        refuse(backend.start(&pipeline, 0, shape, &options).map(drop));

        let all = errors.join("\n");
        for part in [
            "keys: expected [2, 2300, 16], got [1, 2300, 16]",
            "values: expected 2300, one per key, got 5",
            "values: expected [2, 2300, 12], got [2, 2300, 16]",
            "keys[1, 7, 3] is NaN: expected a finite number of magnitude at most 6.5504e4",
            "values[0, 9, 2] is 6.552e4: expected a finite number of magnitude at most 6.5504e4",
            "visible: expected 3, one per query, got 2",
            "visible[2]: expected 1 to 2300 (the tokens appended), got 0",
            "visible[1]: expected 1 to 2300 (the tokens appended), got 2301",
            "queries[3, 1, 2] is -inf",
            "scaled queries[3, 1, 2] is 2.5e29",
            "prompt queries: expected at most 2300 (the tokens appended), got 2301",
            "tokens: expected at least 1 before a query, got 0",
            "query_heads: expected a multiple of kv_heads = 2, got 5",
            "layer: expected at most 4095, got 4096",
            "scale: expected a finite number, got NaN",
        ] {
            assert!(all.contains(part), "{part} is not in:\n{all}");
        }
        let attend = |attention: &mut Box<dyn Attention>| {
            attention.attend(world.queries.view(), None).unwrap().out
        };
        assert_eq!(attend(&mut attention), attend(&mut untouched), "an error changed the sequence");
    }
    let none = Options { threads: Some(0), ..Options::default() };
    let error = backend("cpu").unwrap().start(&pipeline, 0, shape, &none).err().unwrap();
    assert_eq!(error.to_string(), "backend cpu: threads: expected at least 1, got 0");
}
