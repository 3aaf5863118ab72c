//! What a backend answers does not depend on how its tokens arrived, nor on what became of a fork.

use crate::common;
use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array3, s};
use ndarray_rand::RandomExt;
use ndarray_rand::rand::SeedableRng;
use ndarray_rand::rand_distr::StandardNormal;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use vattention::config::load;
use vattention::{
    Attention, Backend, Options, Output, PipelineConfig, Shape, Storage, available_backends,
};

/// Rows of 4 KiB in f32 and 2 KiB otherwise: 512 or 1024 tokens fill a chunk of the cache.
const SHAPE: Shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 500, value_dim: 400 };

struct World {
    keys: Array3<f32>,
    values: Array3<f32>,
    queries: Array3<f32>,
}

impl World {
    fn new(tokens: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut make =
            |heads, rows, dim| Array3::random_using((heads, rows, dim), StandardNormal, &mut rng);
        Self {
            keys: make(SHAPE.kv_heads, tokens, SHAPE.head_dim),
            values: make(SHAPE.kv_heads, tokens, SHAPE.value_dim),
            queries: make(SHAPE.query_heads, 2, SHAPE.head_dim),
        }
    }

    /// Appends tokens of the range, as many at a time as `by` says, over and over.
    fn append(&self, attention: &mut dyn Attention, range: Range<usize>, by: &[usize]) {
        let mut counts = by.iter().cycle();
        let mut first = range.start;
        while first < range.end {
            let part = first..(first + counts.next().unwrap()).min(range.end);
            first = part.end;
            let keys = self.keys.slice(s![.., part.clone(), ..]);
            attention.append(keys, self.values.slice(s![.., part, ..])).unwrap();
        }
    }

    /// The bits of what is answered, and what was read for it.
    fn answer(
        &self,
        attention: &mut dyn Attention,
    ) -> (Vec<u32>, Option<vattention::engine::Selection>) {
        let Output { out, log_denominator, selection, .. } =
            attention.attend(self.queries.view(), None).unwrap();
        (out.iter().chain(&log_denominator).map(|x| x.to_bits()).collect(), selection)
    }
}

/// Starts an empty sequence on each backend, with each kind of storage.
fn each_start(mut check: impl FnMut(&str, &dyn Fn() -> Box<dyn Attention>)) {
    let pipeline: Arc<PipelineConfig> =
        load(common::root("configs/vattention-oracle.toml")).unwrap();
    for backend in available_backends() {
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let options = Options { storage, return_selection: true, ..Options::default() };
            let name = format!("{storage:?} on {}", Backend::name(&*backend));
            check(&name, &|| backend.start(&pipeline, 0, SHAPE, &options).unwrap());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn answers_do_not_depend_on_how_tokens_came(
        tokens in 900usize..1300,
        by in prop::collection::vec(1usize..300, 1..5),
        forked_at in 0usize..900,
        seed: u64,
    ) {
        let (world, other) = (World::new(tokens, seed), World::new(tokens, !seed));
        each_start(|name, start| {
            let mut expected = start();
            world.append(&mut *expected, 0..tokens, &[tokens]);
            let expected_answer = world.answer(&mut *expected);

            for by in [&[1], &by[..]] {
                let mut attention = start();
                world.append(&mut *attention, 0..tokens, by);
                assert_eq!(world.answer(&mut *attention), expected_answer, "{name}, by {by:?}");
            }

            let mut longer = start();
            world.append(&mut *longer, 0..forked_at, &by);
            other.append(&mut *longer, forked_at..tokens, &by);
            longer.truncate(forked_at).unwrap();
            world.append(&mut *longer, forked_at..tokens, &by);
            assert_eq!(world.answer(&mut *longer), expected_answer, "{name}, truncated");

            let mut original = start();
            world.append(&mut *original, 0..forked_at, &by);
            let mut fork = original.fork(None).unwrap();
            let mut stray = original.fork(None).unwrap();
            other.append(&mut *stray, forked_at..tokens, &by);
            world.append(&mut *fork, forked_at..tokens, &by);
            other.append(&mut *stray, 0..10, &[3]);
            world.append(&mut *original, forked_at..tokens, &[7]);
            assert_ne!(world.answer(&mut *stray), expected_answer, "{name}, the stray");
            drop(stray);
            assert_eq!(world.answer(&mut *original), expected_answer, "{name}, the original");
            drop(original);
            assert_eq!(world.answer(&mut *fork), expected_answer, "{name}, the fork");
        });
    }
}
