//! Random pipelines that run completely on the device, compared with the reference.

use crate::common;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array3, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::Uniform;
use proptest::prelude::*;
use proptest::sample::select;
use rand_chacha::ChaCha8Rng;
use vattention::backends::Reference;
use vattention::config::Loader;
use vattention::cuda::Gpu;
use vattention::{Attention, Backend, FallBack, Options, Output, PipelineConfig, Shape, Storage};

use crate::common::agreement::{compare_picks, compare_reports};

/// Shapes, few because each is compiled: groups of 1, 3, 4 and 8, and values shorter and longer
/// than keys.
const SHAPES: [Shape; 4] = [
    Shape { query_heads: 2, kv_heads: 2, head_dim: 8, value_dim: 8 },
    Shape { query_heads: 3, kv_heads: 1, head_dim: 20, value_dim: 40 },
    Shape { query_heads: 8, kv_heads: 2, head_dim: 16, value_dim: 12 },
    Shape { query_heads: 8, kv_heads: 1, head_dim: 64, value_dim: 33 },
];

/// A pipeline, and a sequence that it runs on.
#[derive(Clone, Debug)]
struct Case {
    pipeline: String,
    shape: Shape,
    storage: Storage,
    /// Number of tokens appended before each step.
    parts: Vec<usize>,
    /// Visible tokens of each query of a step.
    visible: Vec<Visible>,
    /// Binary logarithm of a factor of the values of each KV head.
    powers: [i32; 2],
    seed: u64,
}

/// Visible tokens: a number, or a fraction of all tokens.
#[derive(Clone, Copy, Debug)]
enum Visible {
    Tokens(usize),
    Share(f64),
}

impl Visible {
    fn count(self, tokens: usize) -> usize {
        match self {
            Self::Tokens(visible) => visible.min(tokens),
            Self::Share(share) => ((tokens as f64 * share) as usize).max(1),
        }
    }
}

fn size() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (1_usize..60).prop_map(|tokens| tokens.to_string()),
        1 => select(vec!["300", "1024", "5000"]).prop_map(str::to_owned),
        2 => (0.002..0.4_f64).prop_map(|share| share.to_string()),
    ]
}

fn selector() -> impl Strategy<Value = String> {
    let score = || select(vec!["head", "group"]);
    let table = |kind: &str, rest: String| format!("[[selectors]]\ntype = \"{kind}\"\n{rest}\n");
    prop_oneof![
        size().prop_map(move |size| table("sink", format!("size = {size}"))),
        size().prop_map(move |size| table("window", format!("size = {size}"))),
        (size(), score()).prop_map(move |(size, score)| {
            table("oracle-top-k", format!("size = {size}\nscore = \"{score}\""))
        }),
        (size(), score(), select(vec![1, 2, 15, 16, 300, 5000])).prop_map(
            move |(size, score, page)| {
                table("quest", format!("size = {size}\nscore = \"{score}\"\npage = {page}"))
            }
        ),
        (size(), score(), select(vec!["head", "group"]), select(vec![1, 31, 32, 33, 96])).prop_map(
            move |(size, score, codes, bits)| {
                let rest = format!("score = \"{score}\"\ncodes = \"{codes}\"\nbits = {bits}");
                table("hash-attention", format!("size = {size}\n{rest}"))
            }
        ),
    ]
}

/// An estimator, with the selector that it needs, if any.
fn estimator() -> impl Strategy<Value = String> {
    let hoeffding = (
        select(vec![
            ("denominator", "none"),
            ("denominator", "finite"),
            ("numerator", "none"),
            ("sdpa", "none"),
        ]),
        select(vec!["exact", "paper"]),
        0.05..0.9_f64,
        0.01..0.9_f64,
        size(),
    );
    let ratio = (0.05..0.9_f64, 0.01..0.9_f64, 1..4, size(), select(vec!["row", "step"]));
    prop_oneof![
        1 => Just(String::new()),
        1 => size().prop_map(|size| {
            format!("[estimator]\ntype = \"ratio\"\ndelta = 0.1\nsize = {size}\n")
        }),
        3 => ratio.prop_map(|(epsilon, delta, rounds, base, scope)| {
            format!(
                "[sampler]\nbase = {base}\n[estimator]\ntype = \"ratio\"\nepsilon = {epsilon}\n\
                 delta = {delta}\nrounds = {rounds}\nscope = \"{scope}\"\n"
            )
        }),
        2 => hoeffding.prop_map(|((target, correction), combine, epsilon, delta, size)| {
            format!(
                "[[selectors]]\ntype = \"oracle-top-k\"\nsize = {size}\nscore = \"head\"\n\
                 [estimator]\n\
                 type = \"hoeffding\"\ntarget = \"{target}\"\ncorrection = \"{correction}\"\n\
                 combine = \"{combine}\"\nepsilon = {epsilon}\ndelta = {delta}\n"
            )
        }),
    ]
}

fn visible() -> impl Strategy<Value = Visible> {
    prop_oneof![
        select(vec![1, 2, 31, 32, 33, 63, 64, 255, 256, 257]).prop_map(Visible::Tokens),
        Just(Visible::Share(1.0)),
        (0.0..1.0).prop_map(Visible::Share),
    ]
}

prop_compose! {
    fn case()(
        share in select(vec!["group", "head"]),
        pipeline_seed in 0..1_000_u32,
        selectors in prop::collection::vec(selector(), 1..4),
        estimator in estimator(),
        shape in select(SHAPES.to_vec()),
        storage in select(&Storage::FLOATS[..]),
        parts in prop::collection::vec(1_usize..500, 1..3),
        visible in prop::collection::vec(visible(), 2),
        powers in prop_oneof![Just([0, 0]), select(vec![[-75, 40], [3, -2], [50, 0]])],
        seed: u64,
    ) -> Case {
        // Bounds are those of one query head.
        let share = if estimator.contains("hoeffding") { "head" } else { share };
        let top = format!("share = \"{share}\"\nseed = {pipeline_seed}\n");
        let pipeline = top + &selectors.concat() + &estimator;
        // Values must be in the range of f16.
        let most = if storage == Storage::F16 { 3 } else { i32::MAX };
        let powers = powers.map(|power| power.clamp(-most, most));
        Case { pipeline, shape, storage, parts, visible, powers, seed }
    }
}

impl Case {
    fn config(&self) -> Arc<PipelineConfig> {
        Loader::default().parse("drawn.toml", &self.pipeline).unwrap()
    }

    fn start(&self, backend: &dyn Backend) -> Box<dyn Attention> {
        // With a power of two as scale, sums of products of whole numbers are exact in any order.
        let scale = Some(0.25);
        let options = Options {
            return_selection: true,
            fall_back: FallBack::Never,
            scale,
            storage: self.storage,
            ..Options::default()
        };
        backend.start(&self.config(), 0, self.shape, &options).unwrap()
    }

    fn numbers(&self, salt: u64, heads: usize, count: usize, dim: usize) -> Array3<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ salt);
        let numbers = Uniform::new_inclusive(-2_i8, 2).unwrap();
        Array3::random_using((heads, count, dim), numbers, &mut rng).mapv(f32::from)
    }

    fn values(&self, tokens: usize) -> Array3<f32> {
        let mut values = self.numbers(2, self.shape.kv_heads, tokens, self.shape.value_dim);
        for (mut head, power) in values.outer_iter_mut().zip(self.powers) {
            head *= 2.0_f32.powi(power);
        }
        values
    }

    /// Appends the parts, and runs the queries after each. Returns the outputs.
    fn run(&self, backend: &dyn Backend) -> Vec<Output> {
        let Shape { query_heads, kv_heads, head_dim, .. } = self.shape;
        let all = self.parts.iter().sum();
        let (keys, values) = (self.numbers(1, kv_heads, all, head_dim), self.values(all));
        let queries = self.numbers(3, query_heads, self.visible.len(), head_dim);
        let mut attention = self.start(backend);
        let mut step = |part: Range<usize>| {
            let visible: Vec<_> = self.visible.iter().map(|limit| limit.count(part.end)).collect();
            let part = s![.., part, ..];
            attention.append(keys.slice(part), values.slice(part)).unwrap();
            attention.attend(queries.view(), Some(&visible)).unwrap()
        };
        let mut end = 0;
        let parts = self.parts.iter().map(|part| {
            end += part;
            end - part..end
        });
        parts.map(&mut step).collect()
    }

    /// Asserts that outputs over the same tokens are equal to within 1e-5 of the head's largest
    /// value, and logarithms of denominators to within 1e-5.
    fn compare_outputs(&self, output: &Output, expected: &Output) {
        let (ours, theirs) =
            (output.selection.as_ref().unwrap(), expected.selection.as_ref().unwrap());
        for ((head, t), &log_d) in expected.log_denominator.indexed_iter() {
            let row = t * self.shape.query_heads + head;
            if ours.row(row) != theirs.row(row) {
                continue;
            }
            let apart = (output.log_denominator[[head, t]] - log_d).abs();
            assert!(apart <= 1e-5 * log_d.abs().max(1.0), "row {row}: ln D differs by {apart}");
            let largest = 2.0 * 2.0_f32.powi(self.powers[head / self.shape.group()]);
            let rows = [output, expected].map(|output| output.out.slice(s![head, t, ..]));
            for (ours, theirs) in rows[0].iter().zip(rows[1]) {
                let apart = (ours - theirs).abs();
                assert!(apart <= 1e-5 * largest, "row {row}: {ours} for {theirs}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 48,
        ..ProptestConfig::default()
    })]

    /// Tokens read, outputs and certificates are the same.
    #[test]
    fn a_step_on_the_device_equals_that_of_the_reference(case in case()) {
        let Some(emulator) = common::emulator() else { return Ok(()) };
        let (ours, expected) = (case.run(&Gpu::new(emulator)), case.run(&Reference));
        for (ours, expected) in ours.iter().zip(&expected) {
            compare_reports("", case.shape.group(), ours, expected);
            if case.config().estimator.is_some() {
                compare_picks("", ours, expected);
            } else {
                assert_eq!(ours.selection, expected.selection);
            }
            case.compare_outputs(ours, expected);
        }
    }
}
