//! Samples: `sample.cu` and `take.cu`, against core's draws.

use std::ops::Range;
use std::slice::from_ref;

use proptest::prelude::*;
use vattention_core::{
    Picks,
    sample::{Draws, Order},
    step::Stream,
};
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, Draw, DrawInputs, Progress, RecordedWork, Take, Taken, Work};
use vattention_cuda_emulator::ThreadSchedule;

use super::steps::{CAPACITIES, Clock, assert_words, steps, stream, taken_before, united};
use super::world::{Numbers, emulator};

/// The arrays of samples, and the kernels of each step.
struct SampleArrays<D: Device> {
    clock: Clock<D>,
    taken: Taken<D>,
    keys: Array<D, u32>,
    progress: Progress<D>,
    members: usize,
    count: RecordedWork<D>,
    draw: RecordedWork<D>,
    mark: RecordedWork<D>,
}

impl<D: Device> SampleArrays<D> {
    fn new(device: &D, lists: usize, members: usize, capacity: usize) -> Self {
        let clock = Clock::new(device, capacity);
        let taken = Taken::new(device, lists * members, capacity).unwrap();
        let keys = Array::zeros(device, lists * 8).unwrap();
        let progress = Progress::new(device, lists, capacity).unwrap();
        let inputs = DrawInputs::new(device, &keys, capacity).unwrap();
        let (sample, step) = (Draw::new(device).unwrap(), &clock.step);
        let [mut count, mut draw, mut mark] = [(); 3].map(|()| Work::new(device));
        sample.add_count(&mut count, step, &taken, members, &inputs).unwrap();
        sample.add_draw(&mut draw, step, &taken, members, &inputs, &progress).unwrap();
        Take::new(device).unwrap().add_drawn(&mut mark, &progress, &taken, members).unwrap();
        let [count, draw, mark] = [count, draw, mark].map(|work| work.record().unwrap());
        Self { clock, taken, keys, progress, members, count, draw, mark }
    }

    /// Begins a step.
    fn begin(&self, visible: usize, picks: &[Picks], streams: &[Stream]) {
        self.clock.set(visible);
        self.taken.write(&picks.iter().collect::<Vec<_>>()).unwrap();
        let orders = streams.iter().map(|stream| Order::new(visible, stream).parameters());
        let keys: Vec<u32> = orders.flat_map(|(keys, _)| keys).collect();
        self.keys.write(&keys, 0).unwrap();
        self.count.replay().unwrap();
    }

    /// Draws the tokens at more places, and returns all drawn tokens.
    fn draw(&self, places: &[Range<usize>]) -> Vec<Vec<u32>> {
        self.progress.set(places).unwrap();
        self.draw.replay().unwrap();
        self.progress.tokens().unwrap()
    }

    /// Takes the drawn tokens, and checks the bits of all taken tokens.
    fn mark(&self, picks: &mut [Picks], drawn: &[Vec<u32>]) {
        self.mark.replay().unwrap();
        for (first, drawn) in picks.iter_mut().step_by(self.members).zip(drawn) {
            first.take_all(drawn.iter().map(|&token| token as usize));
        }
        assert_words(&self.taken.words().unwrap(), picks);
    }
}

/// Checks that the device draws what core draws, in several parts, some of them empty.
pub(crate) fn check_sample<D: Device>(
    device: &D,
    (lists, members): (usize, usize),
    capacity: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let arrays = SampleArrays::new(device, lists, members, capacity);
    for (step, visible) in steps(capacity, &mut numbers).into_iter().enumerate() {
        let mut picks = taken_before(lists * members, visible, &mut numbers);
        let streams: Vec<Stream> = (0..lists).map(|i| stream(seed + step as u64, i)).collect();
        arrays.begin(visible, &picks, &streams);
        let open = united(&picks, visible, members);
        let mut expected = vec![Vec::new(); lists];
        let mut draws: Vec<Draws> =
            streams.iter().map(|stream| Order::new(visible, stream).draws()).collect();
        for _ in 0..3 {
            let places: Vec<Range<usize>> = (0..lists)
                .map(|i| {
                    let (first, left) = (expected[i].len(), visible - open[i].len());
                    let count = numbers.below((left - first) / 2 + 3).min(left - first);
                    let more = if numbers.below(4) == 0 { left - first } else { count };
                    draws[i].fill(&open[i], more, &mut expected[i]);
                    first..first + more
                })
                .collect();
            assert_eq!(arrays.draw(&places), expected, "{places:?} of {visible}");
        }
        arrays.mark(&mut picks, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn draws_are_those_of_core(
        lists in 1_usize..4,
        members in 1_usize..3,
        capacity in prop::sample::select(&CAPACITIES[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_sample(&device.with_order(schedule), (lists, members), capacity, seed);
    }
}

/// An empty part leaves all tokens unchanged.
#[test]
fn an_empty_part_changes_nothing() {
    let Some(device) = emulator() else { return };
    let arrays = SampleArrays::new(&device, 1, 1, 5000);
    arrays.begin(5000, &[Picks::new(5000)], &[stream(1, 0)]);
    let drawn = arrays.draw(from_ref(&(0..40)));
    arrays.begin(4000, &[Picks::new(4000)], &[stream(2, 0)]);
    assert_eq!(arrays.draw(from_ref(&(40..40))), drawn);
}

/// Places beyond the tokens or the capacity are not drawn.
#[test]
fn draws_end_with_the_tokens_and_the_capacity() {
    let Some(device) = emulator() else { return };
    let arrays = SampleArrays::new(&device, 2, 1, 100);
    arrays.begin(100, &[Picks::new(100), Picks::new(100)], &[stream(1, 0), stream(1, 1)]);
    arrays.progress.set(&[0..1000, 0..100]).unwrap();
    arrays.draw.replay().unwrap();
    arrays.progress.set(&[0..100, 0..100]).unwrap();
    for (list, drawn) in arrays.progress.tokens().unwrap().iter().enumerate() {
        let mut expected = Vec::new();
        Order::new(100, &stream(1, list)).draws().fill(&Picks::new(100), 100, &mut expected);
        assert_eq!(*drawn, expected);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let message = |result: vattention_core::Result<()>| result.unwrap_err().to_string();
    let keys = |len| Array::zeros(&device, len).unwrap();
    let refused = message(DrawInputs::new(&device, &keys(9), 10).map(drop));
    assert!(refused.contains("keys of orders: expected 8, got 9"), "{refused}");
    let clock = Clock::new(&device, 10);
    let taken = Taken::new(&device, 2, 10).unwrap();
    let sample = Draw::new(&device).unwrap();
    let add = |members, room, (lists, capacity)| {
        let inputs = DrawInputs::new(&device, &keys(16), room).unwrap();
        let progress = Progress::new(&device, lists, capacity).unwrap();
        let mut work = Work::new(&device);
        message(sample.add_draw(&mut work, &clock.step, &taken, members, &inputs, &progress))
    };
    for (refused, because) in [
        (add(3, 10, (2, 10)), "rows: expected a multiple of 3, got 2"),
        (add(2, 10, (2, 10)), "orders: expected 1, got 2"),
        (add(1, 11, (2, 10)), "room for tokens of a drawing: expected 10, got 11"),
        (add(1, 10, (1, 10)), "samples: expected 2, got 1"),
        (add(1, 10, (2, 9)), "room for tokens of samples: expected 10, got 9"),
    ] {
        assert!(refused.contains(because), "{refused}");
    }
}
