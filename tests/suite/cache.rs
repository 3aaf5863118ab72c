//! Outputs do not depend on the number of calls that append the tokens, nor on forks.

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

    /// Appends tokens of the range, in calls of `counts` tokens, cyclically.
    fn append(&self, attention: &mut dyn Attention, range: Range<usize>, counts: &[usize]) {
        let mut counts = counts.iter().cycle();
        let mut first = range.start;
        while first < range.end {
            let part = first..(first + counts.next().unwrap()).min(range.end);
            first = part.end;
            let keys = self.keys.slice(s![.., part.clone(), ..]);
            attention.append(keys, self.values.slice(s![.., part, ..])).unwrap();
        }
    }

    /// Bits of the output of a step, and the tokens read.
    fn attend(
        &self,
        attention: &mut dyn Attention,
    ) -> (Vec<u32>, Option<vattention::engine::Selection>) {
        let Output { out, log_denominator, selection, .. } =
            attention.attend(self.queries.view(), None).unwrap();
        (out.iter().chain(&log_denominator).map(|x| x.to_bits()).collect(), selection)
    }
}

/// Calls `check` with a function that starts an empty sequence, for each backend and storage.
fn for_each_start(mut check: impl FnMut(&str, &dyn Fn() -> Box<dyn Attention>)) {
    let pipeline: Arc<PipelineConfig> =
        load(common::root("configs/vattention-oracle.toml")).unwrap();
    for backend in available_backends() {
        for storage in Storage::ALL {
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
    fn outputs_do_not_depend_on_calls_and_forks(
        tokens in 900usize..1300,
        counts in prop::collection::vec(1usize..300, 1..5),
        middle in 0usize..900,
        seed: u64,
    ) {
        let (world, other) = (World::new(tokens, seed), World::new(tokens, !seed));
        for_each_start(|name, start| {
            let mut whole = start();
            world.append(&mut *whole, 0..tokens, &[tokens]);
            let expected = world.attend(&mut *whole);

            for counts in [&[1], &counts[..]] {
                let mut attention = start();
                world.append(&mut *attention, 0..tokens, counts);
                assert_eq!(world.attend(&mut *attention), expected, "{name}, {counts:?}");
            }

            let mut longer = start();
            world.append(&mut *longer, 0..middle, &counts);
            other.append(&mut *longer, middle..tokens, &counts);
            longer.truncate(middle).unwrap();
            world.append(&mut *longer, middle..tokens, &counts);
            assert_eq!(world.attend(&mut *longer), expected, "{name}, truncated");

            let mut original = start();
            world.append(&mut *original, 0..middle, &counts);
            let mut fork = original.fork(None).unwrap();
            let mut other_fork = original.fork(None).unwrap();
            other.append(&mut *other_fork, middle..tokens, &counts);
            world.append(&mut *fork, middle..tokens, &counts);
            other.append(&mut *other_fork, 0..10, &[3]);
            world.append(&mut *original, middle..tokens, &[7]);
            assert_ne!(world.attend(&mut *other_fork), expected, "{name}, other tokens");
            drop(other_fork);
            assert_eq!(world.attend(&mut *original), expected, "{name}, the original");
            drop(original);
            assert_eq!(world.attend(&mut *fork), expected, "{name}, the fork");
        });
    }
}
