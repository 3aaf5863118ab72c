//! Steps of different lengths, one after the other, in the same arrays.

use vattention_core::{Picks, Shape, Site, sample::Order, step::Stream};
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, StepNumbers};

use super::world::Numbers;

/// Capacities around the sizes of words and of blocks' spans.
pub(crate) const CAPACITIES: [usize; 14] =
    [0, 1, 31, 32, 33, 63, 64, 65, 511, 4095, 4096, 4097, 8193, 9000];

/// The numbers that change from step to step.
pub(crate) struct Clock<D: Device> {
    numbers: Array<D, u32>,
    pub(crate) step: StepNumbers<D>,
}

impl<D: Device> Clock<D> {
    pub(crate) fn new(device: &D, capacity: usize) -> Self {
        let numbers = Array::zeros(device, StepNumbers::<D>::LEN).unwrap();
        Self { numbers: numbers.clone(), step: StepNumbers::new(numbers, capacity).unwrap() }
    }

    /// Begins a step with `visible` tokens.
    pub(crate) fn set(&self, visible: usize) {
        let (_, sides) = Order::new(visible, &stream(0, 0)).parameters();
        self.numbers.write(&StepNumbers::<D>::numbers(visible, sides, 7), 0).unwrap();
    }
}

pub(crate) fn stream(seed: u64, member: usize) -> Stream {
    let shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 1, value_dim: 1 };
    Stream::new(&Site { seed, sequence: 3, layer: 2, kv_head: 1, shape }, 0, 5, member)
}

/// Visible tokens of three steps: the capacity once, and any number twice.
pub(crate) fn steps(capacity: usize, numbers: &mut Numbers) -> [usize; 3] {
    let mut steps = [0; 3].map(|_| match numbers.below(3) {
        0 => CAPACITIES[numbers.below(CAPACITIES.len())].min(capacity),
        _ => numbers.below(capacity + 1),
    });
    steps[numbers.below(3)] = capacity;
    steps
}

/// Rows that have taken a range and single tokens.
pub(crate) fn taken_before(rows: usize, visible: usize, numbers: &mut Numbers) -> Vec<Picks> {
    let row = |_| {
        let mut picks = Picks::new(visible);
        let start = numbers.below(visible + 1);
        picks.take_range(start..start + numbers.below(visible / 2 + 1));
        picks.take_all((0..numbers.below(9)).map(|_| numbers.below(visible + 1)));
        picks
    };
    (0..rows).map(row).collect()
}

/// Checks that the bits are those of the picks, and that no other bits are set.
pub(crate) fn assert_words(found: &[Vec<u64>], picks: &[Picks]) {
    assert_eq!(found.len(), picks.len());
    for (row, (found, picks)) in found.iter().zip(picks).enumerate() {
        let (visible, beyond) = found.split_at(picks.words().len());
        assert_eq!(visible, picks.words(), "row {row} of {} tokens", picks.visible());
        assert!(beyond.iter().all(|&bits| bits == 0), "row {row} beyond {}", picks.visible());
    }
}

/// The unions of `members` consecutive rows.
pub(crate) fn united(picks: &[Picks], visible: usize, members: usize) -> Vec<Picks> {
    let unite = |picks: &[Picks]| {
        let mut united = Picks::new(visible);
        for picks in picks {
            united.union(picks);
        }
        united
    };
    picks.chunks(members).map(unite).collect()
}
