//! Bits of tokens: `take.cu` and `list.cu`, against core's picks.

use proptest::prelude::*;
use vattention_core::Picks;
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, ListTaken, Lists, Progress, Take, Taken, Work};
use vattention_cuda_emulator::ThreadSchedule;

use super::steps::{CAPACITIES, Clock, assert_words, steps, taken_before, united};
use super::world::{Numbers, emulator};

/// Ends of a range, in any order, some beyond the visible tokens.
fn range(visible: usize, numbers: &mut Numbers) -> [u32; 2] {
    let first = numbers.below(visible + 40);
    match numbers.below(6) {
        0 => [first as u32, u32::MAX],
        1 => [0, first as u32],
        2 => [u32::MAX - numbers.below(40) as u32, u32::MAX],
        3 => [first as u32, numbers.below(visible + 40) as u32],
        _ => [first as u32, (first + numbers.below(70)) as u32],
    }
}

/// Checks that the device takes the ranges that core takes, in addition to earlier ones or instead.
pub(crate) fn check_ranges<D: Device>(
    device: &D,
    (rows, count): (usize, usize),
    capacity: usize,
    fresh: bool,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let clock = Clock::new(device, capacity);
    let ranges = Array::zeros(device, rows * count * 2).unwrap();
    let taken = Taken::new(device, rows, capacity).unwrap();
    let mut work = Work::new(device);
    Take::new(device).unwrap().add(&mut work, &clock.step, &ranges, &taken, fresh).unwrap();
    let work = work.record().unwrap();
    for visible in steps(capacity, &mut numbers) {
        let mut picks = if fresh {
            // Tokens that an earlier step has taken.
            let before = taken_before(rows, capacity, &mut numbers);
            taken.write(&before.iter().collect::<Vec<_>>()).unwrap();
            vec![Picks::new(visible); rows]
        } else {
            let before = taken_before(rows, visible, &mut numbers);
            taken.write(&before.iter().collect::<Vec<_>>()).unwrap();
            before
        };
        let step_ranges: Vec<[u32; 2]> =
            (0..rows * count).map(|_| range(visible, &mut numbers)).collect();
        clock.set(visible);
        ranges.write(step_ranges.as_flattened(), 0).unwrap();
        work.replay().unwrap();
        for (i, &[first, end]) in step_ranges.iter().enumerate() {
            picks[i / count].take_range(first as usize..end as usize);
        }
        assert_words(&taken.words().unwrap(), &picks);
    }
}

/// Checks the device's lists of united picks, and their lengths.
pub(crate) fn check_lists<D: Device>(
    device: &D,
    (lists, members): (usize, usize),
    capacity: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let clock = Clock::new(device, capacity);
    let taken = Taken::new(device, lists * members, capacity).unwrap();
    let listed = Lists::room(device, lists, capacity).unwrap();
    let totals = Array::zeros(device, lists).unwrap();
    let list = ListTaken::new(device).unwrap();
    let counts = list.counts(lists, capacity).unwrap();
    let mut work = Work::new(device);
    list.add(&mut work, &clock.step, &taken, members, &listed, &counts).unwrap();
    list.add_total(&mut work, &clock.step, &taken, members, &totals, &counts).unwrap();
    let work = work.record().unwrap();
    for visible in steps(capacity, &mut numbers) {
        // Bits of invisible tokens do not count.
        let beyond = if numbers.below(2) == 0 { visible } else { capacity };
        let picks = taken_before(lists * members, beyond, &mut numbers);
        clock.set(visible);
        taken.write(&picks.iter().collect::<Vec<_>>()).unwrap();
        work.replay().unwrap();
        let visible_tokens = |picks: Picks| -> Vec<u32> {
            picks.indices().into_iter().filter(|&token| (token as usize) < visible).collect()
        };
        let united = united(&picks, beyond, members);
        let expected: Vec<_> = united.into_iter().map(visible_tokens).collect();
        assert_eq!(listed.read().unwrap(), expected);
        let lengths: Vec<u32> = expected.iter().map(|list| list.len() as u32).collect();
        assert_eq!(totals.read().unwrap(), lengths);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn ranges_are_those_of_core(
        rows in 1_usize..4,
        count in 0_usize..4,
        capacity in prop::sample::select(&CAPACITIES[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        fresh: bool,
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_ranges(&device.with_order(schedule), (rows, count), capacity, fresh, seed);
    }

    #[test]
    fn lists_are_those_of_core(
        members in 1_usize..4,
        lists in 0_usize..3,
        capacity in prop::sample::select(&CAPACITIES[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_lists(&device.with_order(schedule), (lists, members), capacity, seed);
    }
}

/// Lists need several blocks, in all schedules.
#[test]
fn long_lists() {
    let Some(device) = emulator() else { return };
    for (seed, schedule) in ThreadSchedule::several().into_iter().enumerate() {
        check_lists(&device.clone().with_order(schedule), (2, 2), 70_000, seed as u64);
        check_ranges(&device.clone().with_order(schedule), (2, 2), 70_000, true, seed as u64);
    }
}

/// Kernels clamp the number of visible tokens to the capacity.
#[test]
fn more_visible_tokens_than_the_capacity() {
    let Some(device) = emulator() else { return };
    let (capacity, clock) = (100, Clock::new(&device, 100));
    let taken = Taken::new(&device, 1, capacity).unwrap();
    let ranges = Array::new(&device, &[0, u32::MAX]).unwrap();
    let lists = Lists::room(&device, 1, capacity).unwrap();
    let list = ListTaken::new(&device).unwrap();
    let counts = list.counts(1, capacity).unwrap();
    let mut work = Work::new(&device);
    Take::new(&device).unwrap().add(&mut work, &clock.step, &ranges, &taken, true).unwrap();
    list.add(&mut work, &clock.step, &taken, 1, &lists, &counts).unwrap();
    clock.set(1_000_000);
    work.run().unwrap();
    assert_eq!(lists.read().unwrap(), [(0..100).collect::<Vec<u32>>()]);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let refused = |message: String, because: &str| assert!(message.contains(because), "{message}");
    let message = |result: vattention_core::Result<()>| result.unwrap_err().to_string();
    let new = |rows, capacity| message(Taken::new(&device, rows, capacity).map(drop));
    refused(new(1, 1 << 31), "room for tokens: expected less than 2^31 on CUDA");
    refused(new(65_536, 1), "rows: expected at most 65535");
    let taken = Taken::new(&device, 2, 10).unwrap();
    let picks = [Picks::new(10), Picks::new(11)];
    refused(message(taken.write(&[&picks[0]])), "rows: expected 2, got 1");
    refused(message(taken.write(&[&picks[0], &picks[1]])), "visible tokens: expected at most 10");

    let (clock, other) = (Clock::new(&device, 10), Clock::new(&device, 11));
    let take = Take::new(&device).unwrap();
    let mut work = Work::new(&device);
    let ranges = |len| Array::zeros(&device, len).unwrap();
    let refuse = take.add(&mut work, &clock.step, &ranges(6), &taken, true);
    refused(message(refuse), "ends of ranges: expected the same number for each of 2 rows, got 6");
    let refuse = take.add(&mut work, &other.step, &ranges(8), &taken, true);
    refused(message(refuse), "room for tokens of bits: expected 11, got 10");
    let progress = Progress::new(&device, 2, 10).unwrap();
    refused(message(take.add_drawn(&mut work, &progress, &taken, 2)), "samples: expected 1, got 2");
    let progress = Progress::new(&device, 2, 9).unwrap();
    refused(
        message(take.add_drawn(&mut work, &progress, &taken, 1)),
        "room for tokens of samples: expected 10, got 9",
    );

    let list = ListTaken::new(&device).unwrap();
    let counts = list.counts(2, 10).unwrap();
    let mut add = |members, (lists, capacity), counts: &Array<_, u32>| {
        let lists = Lists::room(&device, lists, capacity).unwrap();
        message(list.add(&mut work, &clock.step, &taken, members, &lists, counts))
    };
    for members in [0, 3] {
        refused(add(members, (2, 10), &counts), "rows: expected a multiple of");
    }
    refused(add(1, (1, 10), &counts), "lists: expected 2, got 1");
    refused(add(1, (2, 9), &counts), "room for tokens of all lists: expected 20, got 18");
    refused(add(2, (1, 10), &counts), "room for counts: expected 1, got 2");
    let beginnings = Lists::beginnings(&device, &[10, 10]).unwrap();
    let refuse = list.add(&mut work, &clock.step, &taken, 1, &beginnings, &counts);
    refused(message(refuse), "tokens: expected 20, got 0");
    let few = Lists::new(&device, &[0, 10, 20], &[3; 20], None).unwrap();
    let refuse = list.add(&mut work, &clock.step, &taken, 1, &few, &counts);
    refused(message(refuse), "rows of a list: expected 10, got 4");
    let refuse = list.add_total(&mut work, &clock.step, &taken, 1, &ranges(1), &counts);
    refused(message(refuse), "totals: expected 2, got 1");
}
