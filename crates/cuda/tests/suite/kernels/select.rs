//! Selection by scores: `select.cu`, against core's picks.

use proptest::prelude::*;
use vattention_core::step::Rank;
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, Bounds, DeviceScores, ScoreType, Select, SelectBuffers, Taken, Work,
};
use vattention_cuda_emulator::ThreadSchedule;

use super::steps::{CAPACITIES, Clock, assert_words, steps, taken_before};
use super::world::{Numbers, emulator};

/// Checks at each step that the device takes what core takes, and finds the best untaken score.
fn check_steps<D: Device, S: ScoreType + Rank + PartialEq + std::fmt::Debug>(
    device: &D,
    (rows, capacity, page): (usize, usize, usize),
    seed: u64,
    mut score: impl FnMut(&mut Numbers) -> S,
) {
    let mut numbers = Numbers::new(seed);
    let clock = Clock::new(device, capacity);
    let scores = DeviceScores::for_pages(device, rows, capacity, page).unwrap();
    let counts = Array::zeros(device, rows).unwrap();
    let taken = Taken::new(device, rows, capacity).unwrap();
    let buffers = SelectBuffers::new(device, rows, capacity).unwrap();
    let bounds = Bounds::new(device, rows, capacity).unwrap();
    let mut work = Work::new(device);
    let select = Select::<_, S>::for_pages(device, page).unwrap();
    select.add(&mut work, &clock.step, &scores, &counts, &taken, &buffers).unwrap();
    select.add_best_left(&mut work, &clock.step, &scores, &taken, &bounds).unwrap();
    let work = work.record().unwrap();

    for visible in steps(capacity, &mut numbers) {
        let mut picks = taken_before(rows, visible, &mut numbers);
        let count = visible.div_ceil(page);
        let step_scores: Vec<S> = (0..rows * count).map(|_| score(&mut numbers)).collect();
        let counts_to_take: Vec<usize> =
            (0..rows).map(|_| choose_count(visible, &mut numbers)).collect();
        let on_device: Vec<u32> = counts_to_take.iter().map(|&k| k as u32).collect();
        clock.set(visible);
        taken.write(&picks.iter().collect::<Vec<_>>()).unwrap();
        scores.write(count, &step_scores).unwrap();
        assert!(scores.read(count).unwrap() == step_scores);
        counts.write(&on_device, 0).unwrap();
        work.replay().unwrap();
        let found = bounds.read(visible).unwrap();
        for (row, picks) in picks.iter_mut().enumerate() {
            let token_scores: Vec<S> =
                (0..visible).map(|token| step_scores[row * count + token / page]).collect();
            let left = picks.take_top(counts_to_take[row], &token_scores);
            assert_eq!(found[row], left.map_or(f32::NEG_INFINITY, S::into), "row {row}");
        }
        assert_words(&taken.words().unwrap(), &picks);
    }
}

/// A number of tokens to take: few, more than there are, or any number.
fn choose_count(visible: usize, numbers: &mut Numbers) -> usize {
    match numbers.below(4) {
        0 => numbers.below(5),
        1 => u32::MAX as usize,
        _ => numbers.below(visible + 2),
    }
}

/// A score, often equal to others, of either sign, sometimes infinite or a zero of either sign.
fn number(numbers: &mut Numbers) -> f32 {
    match numbers.below(40) {
        0 => f32::INFINITY,
        1 => f32::NEG_INFINITY,
        2 => -0.0,
        3 => 0.0,
        4..=20 => (numbers.next() * 8.0).round() / 4.0,
        _ => numbers.next() * 1e3,
    }
}

fn short(numbers: &mut Numbers) -> u16 {
    match numbers.below(20) {
        0 => u16::MAX,
        1 => numbers.below(65_536) as u16,
        _ => numbers.below(33) as u16,
    }
}

/// Checks scores of every type, of tokens or of pages. In one of three cases, half of the scores
/// are extreme or zeros of either sign, so that the cut lies among equals.
pub(crate) fn check_select<D: Device>(device: &D, rows: usize, capacity: usize, seed: u64) {
    let saturated = seed.is_multiple_of(3);
    let page = [1, 1, 16, 33][seed as usize % 4];
    check_steps(device, (rows, capacity, page), seed, |numbers| match numbers.below(4) {
        0 if saturated => 0.0,
        1 if saturated => -0.0,
        _ => number(numbers),
    });
    check_steps(device, (rows, capacity, page), seed, |numbers| match numbers.below(4) {
        0 if saturated => u16::MAX,
        1 if saturated => 0,
        _ => short(numbers),
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn the_best_are_those_of_core(
        rows in 1_usize..4,
        capacity in prop::sample::select(&CAPACITIES[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_select(&device.with_order(schedule), rows, capacity, seed);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let refused = |message: String, because: &str| assert!(message.contains(because), "{message}");
    let message = |result: vattention_core::Result<()>| result.unwrap_err().to_string();
    refused(
        message(DeviceScores::<_, u16>::new(&device, 2, 2).unwrap().write(2, &[0; 3])),
        "scores: expected 4, got 3",
    );
    refused(
        message(DeviceScores::<_, u16>::new(&device, 1, 2).unwrap().write(3, &[0; 3])),
        "scores: expected 2, got 3",
    );
    let clock = Clock::new(&device, 10);
    let taken = Taken::new(&device, 2, 10).unwrap();
    let select = Select::<_, u16>::new(&device).unwrap();
    let run = |(rows, capacity), counts, (also_rows, also_capacity)| {
        let scores = DeviceScores::new(&device, rows, capacity).unwrap();
        let counts = Array::zeros(&device, counts).unwrap();
        let buffers = SelectBuffers::new(&device, also_rows, also_capacity).unwrap();
        let mut work = Work::new(&device);
        message(select.add(&mut work, &clock.step, &scores, &counts, &taken, &buffers))
    };
    refused(run((1, 10), 2, (2, 10)), "rows of scores: expected 2, got 1");
    refused(run((2, 11), 2, (2, 10)), "room for tokens of scores: expected 10, got 11");
    refused(run((2, 10), 1, (2, 10)), "counts of tokens to take: expected 2, got 1");
    refused(run((2, 10), 2, (1, 10)), "rows of a selection: expected 2, got 1");
    refused(run((2, 10), 2, (2, 9)), "room for tokens of a selection: expected 10, got 9");
}
