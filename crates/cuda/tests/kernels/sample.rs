//! Samples: `sample.cu`, against core's draws.

use proptest::prelude::*;
use vattention_core::{Order, Picks, Shape, Site, Stream};
use vattention_cuda::Device;
use vattention_cuda::launch::{Draw, Sample, Taken};
use vattention_cuda_emulator::Schedule;

use super::select::{VISIBLE, taken_before};
use super::world::{Numbers, emulator};

fn stream(seed: u64, member: usize) -> Stream {
    let shape = Shape { query_heads: 8, kv_heads: 2, head_dim: 1, value_dim: 1 };
    Stream::new(&Site { seed, sequence: 3, layer: 2, kv_head: 1, shape }, 0, 5, member)
}

/// The device draws what core draws, at first and when it draws on.
pub(crate) fn check_sample<D: Device>(
    device: &D,
    draws: usize,
    members: usize,
    visible: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let picks = taken_before(draws * members, visible, &mut numbers);
    let taken = Taken::of_picks(device, &picks.iter().collect::<Vec<_>>()).unwrap();
    let streams: Vec<Stream> = (0..draws).map(|i| stream(seed, i)).collect();
    let first: Vec<usize> = (0..draws).map(|_| numbers.below(visible + 3)).collect();
    let more: Vec<usize> = (0..draws).map(|_| numbers.below(visible + 3)).collect();
    let sample = Sample::new(device).unwrap();
    let run = |places: &dyn Fn(usize) -> std::ops::Range<usize>| {
        let draw = |(i, &stream)| Draw { stream, places: places(i) };
        let draws: Vec<Draw> = streams.iter().enumerate().map(draw).collect();
        sample.run(&draws, &taken, members).unwrap().read().unwrap()
    };
    let found = run(&|i| 0..first[i]);
    let found_on = run(&|i| first[i]..first[i] + more[i]);
    for (i, picks) in picks.chunks(members).enumerate() {
        let mut united = Picks::new(visible);
        for picks in picks {
            united.union(picks);
        }
        let mut draws = Order::new(visible, &streams[i]).draws();
        for (found, count) in [(&found[i], first[i]), (&found_on[i], more[i])] {
            let mut expected = Vec::new();
            draws.fill(&united, count, &mut expected);
            assert_eq!(*found, expected, "{count} of {visible}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn draws_are_those_of_core(
        draws in 1_usize..4,
        members in 1_usize..3,
        visible in prop::sample::select(&VISIBLE[..]),
        schedule in prop::sample::select(Schedule::several().to_vec()),
        seed: u64,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_sample(&device.with_order(schedule), draws, members, visible, seed);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = emulator() else { return };
    let taken = Taken::new(&device, 2, 10).unwrap();
    let sample = Sample::new(&device).unwrap();
    let run = |places, members| {
        let draw = Draw { stream: stream(0, 0), places };
        sample.run(&[draw], &taken, members).map(drop).unwrap_err().to_string()
    };
    assert!(run(0..5, 1).contains("rows: expected 1, got 2"));
    #[expect(clippy::reversed_empty_ranges, reason = "that is the fault")]
    let message = run(5..4, 2);
    assert!(message.contains("places of a draw: expected an ascending range"), "{message}");
}
