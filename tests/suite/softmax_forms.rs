//! Soft caps of logits and attention sinks, on all backends and pipelines.

use std::sync::{Arc, Mutex};

use ndarray::{Array3, s};
use serde::{Deserialize, Serialize};
use vattention::backends::{Cpu, Reference};
use vattention::engine::Site;
use vattention::plugin::{
    AttentionWeights, Picks, PromptQueries, Row, Score, Selector, SelectorConfig, register,
    schemars::{self, JsonSchema},
    typetag,
};
use vattention::selectors::OracleTopK;
use vattention::{Backend, FallBack, Options, PipelineConfig, Shape, Size, Storage, backend};

use crate::backends::{SHAPES, World, for_each_config};
use crate::common::agreement::{compare_picks, compare_reports};
use crate::common::{self, MODEL};

/// Sinks that hold almost none, some and most of the attention of successive query heads.
fn sinks(shape: Shape) -> Arc<[f32]> {
    (0..shape.query_heads).map(|head| [-2.0, 7.5, 11.0][head % 3]).collect()
}

/// Sinks, a soft cap, and both.
fn forms(shape: Shape) -> [Options; 3] {
    [
        Options { sink_logits: Some(sinks(shape)), ..Options::default() },
        Options { soft_cap: Some(3.0), ..Options::default() },
        Options { soft_cap: Some(5.0), sink_logits: Some(sinks(shape)), ..Options::default() },
    ]
}

/// On exact products, selectors pick the same tokens on all backends, and samples are nested.
#[test]
fn picks_are_equal_on_all_backends() {
    for (shape, forms) in [(SHAPES[1], &forms(SHAPES[1])[..]), (MODEL, &forms(MODEL)[2..])] {
        let world = World::small_integers(shape, 21);
        for form in forms {
            let exact = Options { scale: Some(0.25), ..form.clone() };
            for_each_config(shape, |name, pipeline| {
                let expected = world.run(&Reference, pipeline, &exact);
                world.check_sums(&format!("{name} on reference"), &expected, &exact);
                for backend in common::backends() {
                    let output = world.run(&*backend, pipeline, &exact);
                    let context = format!("{name} on {}, {exact:?}", backend.name());
                    compare_reports(&context, shape.group(), &output, &expected);
                    world.check_sums(&context, &output, &exact);
                    compare_picks(&context, &output, &expected);
                }
            });
        }
    }
}

/// Outputs equal the f64 sums over the reported picks and the sink.
#[test]
fn outputs_are_the_sums_over_the_reported_picks_and_the_sink() {
    for (seed, shape) in SHAPES[..3].iter().copied().enumerate() {
        let world = World::normal(shape, 200 + seed as u64);
        let storage = Storage::ALL[3 - seed];
        for form in forms(shape) {
            let options = Options { storage, ..form };
            for_each_config(shape, |name, pipeline| {
                let output = world.run(&Cpu::default(), pipeline, &options);
                world.check_sums(name, &output, &options);
            });
        }
    }
}

/// Pieces of a long sequence are summed on several threads; the sink counts once.
#[test]
fn a_sink_counts_once_in_a_long_sequence() {
    let shape = Shape { query_heads: 4, kv_heads: 1, head_dim: 32, value_dim: 32 };
    let tokens = 9500;
    let numbers = |rows: usize, seed: usize| {
        Array3::from_shape_fn((rows, tokens, 32), |(h, t, i)| {
            ((h * 7 + t * 31 + i * 17 + seed) % 23) as f32 / 11.5 - 1.0
        })
    };
    let (keys, values) = (numbers(1, 3), numbers(1, 8));
    let queries = numbers(4, 5).slice_move(s![.., ..1, ..]);
    for fall_back in FallBack::ALL {
        for pipeline in [PipelineConfig::default(), top_k(6000)] {
            let run = |backend: &dyn Backend, threads| {
                let [sinks, ..] = forms(shape);
                let options = Options { threads, fall_back, ..sinks };
                let pipeline = Arc::new(pipeline.clone());
                let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
                attention.append(keys.view(), values.view()).unwrap();
                let steps = (0..9).map(|_| attention.attend(queries.view(), None).unwrap());
                steps.last().unwrap()
            };
            let expected = run(&Reference, None);
            for threads in [1, 3] {
                let output = run(&Cpu::default(), Some(threads));
                let pairs = output.log_denominator.iter().zip(&expected.log_denominator);
                for (got, want) in pairs {
                    assert!((got - want).abs() < 1e-5, "{fall_back}: {got}, not {want}");
                }
                for (got, want) in output.out.iter().zip(&expected.out) {
                    assert!((got - want).abs() < 1e-5, "{fall_back}: {got}, not {want}");
                }
            }
        }
    }
}

fn top_k(size: usize) -> PipelineConfig {
    let top = OracleTopK { size: Size::Tokens(size), score: Score::Head };
    PipelineConfig { selectors: vec![Box::new(top)], ..PipelineConfig::default() }
}

/// A sink of −10,000 equals no sink to the last bit, and one of 10,000 makes every output 0.
#[test]
fn extreme_sinks_neither_overflow_nor_matter() {
    let shape = SHAPES[1];
    let world = World::normal(shape, 31);
    let with_sinks = |sink: f32| Options {
        sink_logits: Some(vec![sink; shape.query_heads].into()),
        ..Options::default()
    };
    for_each_config(shape, |name, pipeline| {
        for backend in [&Reference as &dyn Backend, &Cpu::default()] {
            let plain = world.run(backend, pipeline, &Options::default());
            let light = world.run(backend, pipeline, &with_sinks(-1e4));
            assert_eq!(plain.out, light.out, "{name} on {}", backend.name());
            assert_eq!(plain.log_denominator, light.log_denominator, "{name}");
            assert_eq!(plain.selection, light.selection, "{name}");
            let heavy = world.run(backend, pipeline, &with_sinks(1e4));
            assert!(heavy.out.iter().all(|&x| x == 0.0), "{name} on {}", backend.name());
            assert!(heavy.log_denominator.iter().all(|&x| x == 1e4), "{name}");
        }
    });
}

/// Errors name the option.
#[test]
fn invalid_caps_and_sinks_are_refused() {
    let shape = SHAPES[1];
    let sinks = |sinks: &[f32]| Options { sink_logits: Some(sinks.into()), ..Options::default() };
    let mut infinite = [1.0; 8];
    infinite[5] = f32::NEG_INFINITY;
    let cap = |cap| Options { soft_cap: Some(cap), ..Options::default() };
    for backend in common::backends() {
        for (options, expected) in [
            (sinks(&[]), "sink_logits: expected 8 numbers, one for each query head, got 0"),
            (sinks(&[1.0; 2]), "sink_logits: expected 8 numbers, one for each query head, got 2"),
            (sinks(&infinite), "sink_logits[5]: expected a finite number, got -inf"),
            (cap(0.0), "soft_cap: expected a number from 1e-16 to 1e16, got 0.0"),
            (cap(f32::NAN), "soft_cap: expected a number from 1e-16 to 1e16, got NaN"),
        ] {
            let started = backend.start(&Arc::new(PipelineConfig::default()), 0, shape, &options);
            assert_eq!(started.err().unwrap().to_string(), expected, "{}", backend.name());
        }
    }
}

/// The name `cpu` is that of the backend that other engines fall back to.
#[test]
fn capped_sequences_of_every_backend_equal_those_of_the_cpu() {
    let shape = SHAPES[2];
    let world = World::normal(shape, 77);
    let pipeline = Arc::new(PipelineConfig::default());
    let cpu = backend("cpu").unwrap();
    for form in forms(shape) {
        let expected = world.run(&*cpu, &pipeline, &form);
        for backend in common::backends().iter().filter(|backend| backend.name() == "cuda") {
            let output = world.run(&**backend, &pipeline, &form);
            assert_eq!(output.out, expected.out, "{form:?}");
        }
    }
}

/// Sums of the attention weights that [`WeightWitness`] received, with the sink, and the sinks.
static RECEIVED: Mutex<Vec<(f32, f32)>> = Mutex::new(Vec::new());

/// Picks three of four tokens, and records the attention weights and prompts that it receives.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct WeightWitness {}

#[typetag::serde(name = "weight-witness")]
impl SelectorConfig for WeightWitness {
    fn build(&self, _: &Site) -> vattention::Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "weight-witness", WeightWitness, "for tests: records attention weights");

impl Selector for WeightWitness {
    fn observe(&mut self, prompt: &PromptQueries<'_>) {
        assert_eq!(prompt.form.soft_cap, Some(5.0));
        assert_eq!(prompt.form.sink_logits.unwrap().len(), prompt.site.shape.group());
    }

    fn feedback(&mut self, row: &Row<'_>, attended: &AttentionWeights<'_>) {
        let sum = attended.weights.iter().sum::<f32>() + attended.sink;
        assert_eq!(row.form().sink_logit(row.member()), row.sink_logit());
        RECEIVED.lock().unwrap().push((sum, attended.sink));
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        // More tokens than are worth reading one by one.
        picks.take_all((0..row.visible()).filter(|token| token % 4 > 0));
    }
}

/// Attention weights sum to 1 with that of the sink, also in a fork.
#[test]
fn selectors_learn_from_weights_with_the_sink() {
    let shape = SHAPES[1];
    let world = World::normal(shape, 41);
    let selectors: Vec<Box<dyn SelectorConfig>> = vec![Box::new(WeightWitness {})];
    let pipeline = Arc::new(PipelineConfig { selectors, ..PipelineConfig::default() });
    let [.., options] = forms(shape);
    for backend in [&Reference as &dyn Backend, &Cpu::default()] {
        for fall_back in [FallBack::Never, FallBack::ByCount] {
            let options = Options { fall_back, ..options.clone() };
            let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
            attention.append(world.keys.view(), world.values.view()).unwrap();
            attention.observe(world.queries.view()).unwrap();
            let mut fork = attention.fork(Some(3)).unwrap();
            RECEIVED.lock().unwrap().clear();
            attention.attend(world.queries.view(), None).unwrap();
            fork.attend(world.queries.view(), None).unwrap();
            let received = std::mem::take(&mut *RECEIVED.lock().unwrap());
            assert_eq!(received.len(), 2 * 3 * shape.query_heads);
            for &(sum, sink) in &received {
                assert!((sum - 1.0).abs() < 1e-5 && sink > 0.0, "{sum}, with {sink}");
            }
            assert!(received.iter().any(|&(_, sink)| sink > 0.3), "{received:?}");
        }
    }
}
