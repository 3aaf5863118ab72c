//! Scores: `score.cu` and `logits.cu`, against definitions.

use proptest::prelude::*;
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, DeviceCodes, DeviceScores, RowLayout, ScoreCodes, ScoreLogits, Work,
};
use vattention_cuda_emulator::ThreadSchedule;

use super::steps::{CAPACITIES, Clock, steps};
use super::world::{Head, KINDS, Kind, Numbers, emulator};

/// A random code of `bits` bits; higher bits are 0.
fn code(bits: usize, numbers: &mut Numbers) -> Vec<u32> {
    let word = |word| match bits - 32 * word {
        left @ 1..32 => numbers.bits() >> (32 - left),
        _ => numbers.bits(),
    };
    (0..bits.div_ceil(32)).map(word).collect()
}

/// Writes codes in two parts.
fn write<D: Device>(on_device: &DeviceCodes<D>, codes: &[Vec<u32>]) {
    for word in 0..on_device.bits().div_ceil(32) {
        let column: Vec<u32> = codes.iter().map(|code| code[word]).collect();
        let (some, more) = column.split_at(codes.len() / 2);
        on_device.write(word, 0, some).unwrap();
        on_device.write(word, some.len(), more).unwrap();
    }
}

/// Checks the number of bits in which codes agree, summed over members, at each step.
pub(crate) fn check_codes<D: Device>(
    device: &D,
    bits: usize,
    (rows, members): (usize, usize),
    capacity: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let clock = Clock::new(device, capacity);
    let on_device: Vec<DeviceCodes<D>> =
        (0..rows * members).map(|_| DeviceCodes::new(device, bits, capacity).unwrap()).collect();
    let queries = Array::zeros(device, rows * members * bits.div_ceil(32)).unwrap();
    let scores = DeviceScores::new(device, rows, capacity).unwrap();
    let mut work = Work::new(device);
    let score = ScoreCodes::new(device).unwrap();
    let borrowed: Vec<_> = on_device.iter().collect();
    score.add_codes(&mut work, &clock.step, &borrowed, &queries, &scores).unwrap();
    let work = work.record().unwrap();
    for visible in steps(capacity, &mut numbers) {
        let codes: Vec<Vec<Vec<u32>>> = on_device
            .iter()
            .map(|_| (0..visible).map(|_| code(bits, &mut numbers)).collect())
            .collect();
        let query_codes: Vec<Vec<u32>> = codes.iter().map(|_| code(bits, &mut numbers)).collect();
        on_device.iter().zip(&codes).for_each(|(on_device, codes)| write(on_device, codes));
        queries.write(&query_codes.concat(), 0).unwrap();
        clock.set(visible);
        work.replay().unwrap();
        let agreeing = |member: usize, token: usize| {
            let pairs = query_codes[member].iter().zip(&codes[member][token]);
            bits - pairs.map(|(query, code)| (query ^ code).count_ones() as usize).sum::<usize>()
        };
        let expected: Vec<u16> = (0..rows * visible)
            .map(|i| {
                let (row, token) = (i / visible, i % visible);
                let members = row * members..(row + 1) * members;
                members.map(|member| agreeing(member, token)).sum::<usize>() as u16
            })
            .collect();
        assert!(scores.read(visible).unwrap() == expected, "{visible} of {capacity}");
    }
}

/// Checks the logits of two heads' rows, each for a kind's group of queries, at each step.
pub(crate) fn check_logits<D: Device>(device: &D, kind: Kind, capacity: usize, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let heads: Vec<Head> =
        (0..2).map(|_| Head::usual(kind, capacity.max(1), &mut numbers)).collect();
    let pages: Vec<_> = heads.iter().map(|head| head.pages(device, kind)).collect();
    let rows = heads.len() * kind.group;
    let clock = Clock::new(device, capacity);
    let queries = Array::zeros(device, rows * kind.head_dim).unwrap();
    let scores = DeviceScores::new(device, rows, capacity).unwrap();
    let mut work = Work::new(device);
    let score = ScoreLogits::new(device, kind.layout(), kind.group).unwrap();
    let borrowed: Vec<_> = pages.iter().collect();
    score.add_heads(&mut work, &clock.step, &borrowed, &queries, &scores).unwrap();
    drop(pages);
    let work = work.record().unwrap();
    for (step, visible) in steps(capacity, &mut numbers).into_iter().enumerate() {
        // Each step has other queries of about the same size.
        let sign = [1.0, -1.0, 0.5][step];
        let scaled: Vec<f32> =
            heads.iter().flat_map(|head| head.queries.concat()).map(|x| sign * x).collect();
        queries.write(&scaled, 0).unwrap();
        clock.set(visible);
        work.replay().unwrap();
        let found = scores.read(visible).unwrap();
        for row in 0..rows {
            let (head, query) = (&heads[row / kind.group], row % kind.group);
            for (token, &found) in found[row * visible..][..visible].iter().enumerate() {
                let expected = f64::from(sign) * head.logit(query, token as u32);
                assert!((f64::from(found) - expected).abs() < 2e-5, "{found} for {expected}");
            }
        }
    }
}

/// Numbers of tokens around those that a block reads in parallel, and in all.
const FEW: [usize; 9] = [0, 1, 31, 32, 33, 255, 256, 257, 600];

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn scores_are_agreeing_bits(
        bits in prop::sample::select(&[1_usize, 31, 32, 33, 64, 128][..]),
        members in 1_usize..4,
        rows in 0_usize..3,
        capacity in prop::sample::select(&CAPACITIES[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_codes(&device.with_order(schedule), bits, (rows, members), capacity, seed);
    }

    #[test]
    fn scores_are_logits(
        kind in prop::sample::select(&KINDS[..]),
        capacity in prop::sample::select(&FEW[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_logits(&device.with_order(schedule), kind, capacity, seed);
    }
}

/// Huge logits are whole numbers, and none is rounded.
#[test]
fn huge_logits_are_exact() {
    let Some(device) = emulator() else { return };
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let head = Head::huge(kind, 300, &mut Numbers::new(seed as u64));
        let clock = Clock::new(&device, 300);
        let queries = Array::new(&device, &head.queries.concat()).unwrap();
        let scores = DeviceScores::new(&device, kind.group, 300).unwrap();
        let mut work = Work::new(&device);
        let score = ScoreLogits::new(&device, kind.layout(), kind.group).unwrap();
        let pages = head.pages(&device, kind);
        score.add_heads(&mut work, &clock.step, &[&pages], &queries, &scores).unwrap();
        clock.set(300);
        work.run().unwrap();
        for (i, found) in scores.read(300).unwrap().into_iter().enumerate() {
            let expected = head.logit(i / 300, (i % 300) as u32);
            assert!(f64::from(found) == expected, "{found} for {expected}");
        }
    }
}

#[test]
fn codes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let clock = Clock::new(&device, 10);
    let score = ScoreCodes::new(&device).unwrap();
    let add = |codes: &[(usize, usize)], queries, (rows, capacity)| {
        let codes: Vec<_> =
            codes.iter().map(|&(bits, n)| DeviceCodes::new(&device, bits, n)).collect();
        let codes: Vec<_> = codes.into_iter().map(Result::unwrap).collect();
        let codes: Vec<_> = codes.iter().collect();
        let queries = Array::zeros(&device, queries).unwrap();
        let scores = DeviceScores::new(&device, rows, capacity).unwrap();
        let mut work = Work::new(&device);
        score.add_codes(&mut work, &clock.step, &codes, &queries, &scores).unwrap_err().to_string()
    };
    let (code, wide) = ((32, 10), (40_000, 10));
    for (refused, because) in [
        (add(&[code, (64, 10)], 3, (2, 10)), "bits of codes: expected 32, got 64"),
        (add(&[(32, 13)], 1, (1, 10)), "room for codes: expected 12, got 16"),
        (add(&[code], 2, (1, 10)), "words of query codes: expected 1, got 2"),
        (add(&[code], 1, (2, 10)), "codes: expected the same number for each of 2 rows, got 1"),
        (add(&[code; 3], 3, (2, 10)), "codes: expected the same number for each of 2 rows, got 3"),
        (add(&[code], 1, (0, 10)), "codes: expected the same number for each of 0 rows, got 1"),
        (add(&[code], 1, (1, 11)), "room for tokens of scores: expected 10, got 11"),
        (add(&[], 1, (0, 10)), "words of query codes: expected 0, got 1"),
        (add(&[wide; 2], 2500, (1, 10)), "bits of all members: expected at most 65535"),
    ] {
        assert!(refused.contains(because), "{refused}");
    }
}

#[test]
fn logits_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let (kind, clock) = (KINDS[1], Clock::new(&device, 20));
    for sharing in [0, 17] {
        let refused = ScoreLogits::new(&device, kind.layout(), sharing).unwrap_err().to_string();
        let because = "rows of scores that share keys: expected 1 to 16 on CUDA";
        assert!(refused.contains(because), "{refused}");
    }
    let add = |layout: RowLayout, tokens, (heads, queries), (rows, capacity)| {
        let head = Head::usual(kind, tokens, &mut Numbers::new(0)).pages(&device, kind);
        let queries = Array::zeros(&device, queries * kind.head_dim).unwrap();
        let scores = DeviceScores::new(&device, rows, capacity).unwrap();
        let mut work = Work::new(&device);
        let score = ScoreLogits::new(&device, layout, 2).unwrap();
        let heads = vec![&head; heads];
        let added = score.add_heads(&mut work, &clock.step, &heads, &queries, &scores);
        added.unwrap_err().to_string()
    };
    let layout = kind.layout();
    let other = Kind { log2_page: 2, ..kind }.layout();
    for (refused, because) in [
        (add(other, 20, (1, 2), (2, 20)), "rows: expected RowLayout"),
        (add(layout, 16, (1, 2), (2, 20)), "rows of a head: expected 20, got 16"),
        (add(layout, 20, (1, 3), (3, 20)), "rows of scores: expected a multiple of 2, got 3"),
        (add(layout, 20, (1, 4), (4, 20)), "tables: expected 4, got 2"),
        (add(layout, 20, (1, 3), (2, 20)), "elements of queries: expected 128, got 192"),
        (add(layout, 20, (1, 2), (2, 21)), "room for tokens of scores: expected 20, got 21"),
    ] {
        assert!(refused.contains(because), "{refused}");
    }
}
