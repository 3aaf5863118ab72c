//! Selection: `score.cu`, `select.cu` and `list.cu`, against core's picks.

use proptest::prelude::*;
use vattention_core::{Picks, Rank};
use vattention_cuda::Device;
use vattention_cuda::launch::{Codes, ListTaken, Lists, Ranked, Score, Scores, Select, Taken};
use vattention_cuda_emulator::Schedule;

use super::attend::check;
use super::world::{Head, KINDS, List, Numbers, emulator, run};

/// Contexts around the sizes of words and of what a block looks at.
pub(crate) const VISIBLE: [usize; 13] = [0, 1, 31, 32, 33, 63, 64, 65, 511, 4095, 4096, 4097, 9000];

/// Rows that have taken some tokens each: a few ranges, or one by one.
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

/// The device takes what core takes, and leaves the same.
fn check_select<D: Device, S: Ranked + Rank + PartialEq + std::fmt::Debug>(
    device: &D,
    (rows, visible): (usize, usize),
    seed: u64,
    mut score: impl FnMut(&mut Numbers) -> S,
) {
    let mut numbers = Numbers::new(seed);
    let mut picks = taken_before(rows, visible, &mut numbers);
    let scores: Vec<S> = (0..rows * visible).map(|_| score(&mut numbers)).collect();
    let counts: Vec<usize> = (0..rows)
        .map(|_| match numbers.below(4) {
            0 => numbers.below(5),
            1 => usize::MAX,
            _ => numbers.below(visible + 2),
        })
        .collect();
    let mut taken = Taken::of_picks(device, &picks.iter().collect::<Vec<_>>()).unwrap();
    let on_device = Scores::new(device, rows, visible, &scores).unwrap();
    assert!(on_device.read().unwrap() == scores);
    let select = Select::<_, S>::new(device).unwrap();
    let left = select.run(&on_device, &counts, &mut taken).unwrap().read().unwrap();
    let words = taken.words().unwrap();
    for (row, picks) in picks.iter_mut().enumerate() {
        let next = picks.take_top(counts[row], &scores[row * visible..][..visible]);
        assert_eq!(words[row], picks.words(), "row {row}, {} of {visible}", counts[row]);
        assert_eq!(left[row], next);
    }
}

/// Scores with many equals, of every sign, some of them infinite, and both zeros.
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_best_are_those_of_core(
        rows in 1_usize..4,
        visible in prop::sample::select(&VISIBLE[..]),
        schedule in prop::sample::select(Schedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        let device = device.with_order(schedule);
        check_select(&device, (rows, visible), seed, number);
        check_select(&device, (rows, visible), seed, short);
    }

    #[test]
    fn lists_are_those_of_core(
        members in 1_usize..4,
        lists in 0_usize..3,
        visible in prop::sample::select(&VISIBLE[..]),
        schedule in prop::sample::select(Schedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_lists(&device.with_order(schedule), lists, members, visible, seed);
    }

    #[test]
    fn scores_are_agreeing_bits(
        bits in prop::sample::select(&[1_usize, 31, 32, 33, 64, 128][..]),
        members in 1_usize..4,
        rows in 0_usize..3,
        visible in prop::sample::select(&VISIBLE[..]),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_scores(&device, bits, (rows, members), visible, seed);
    }
}

/// The lists that the device makes of united picks.
fn check_lists<D: Device>(device: &D, lists: usize, members: usize, visible: usize, seed: u64) {
    let picks = taken_before(lists * members, visible, &mut Numbers::new(seed));
    let taken = Taken::of_picks(device, &picks.iter().collect::<Vec<_>>()).unwrap();
    let found = ListTaken::new(device).unwrap().run(&taken, members).unwrap().read().unwrap();
    let united = |picks: &[Picks]| {
        let mut united = Picks::new(visible);
        for picks in picks {
            united.union(picks);
        }
        united.indices()
    };
    assert_eq!(found, picks.chunks(members).map(united).collect::<Vec<_>>());
}

fn check_scores<D: Device>(
    device: &D,
    bits: usize,
    (rows, members): (usize, usize),
    visible: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let words = bits.div_ceil(32);
    let mut code = || -> Vec<u32> {
        let word = |word| match bits - 32 * word {
            left @ 1..32 => numbers.bits() >> (32 - left),
            _ => numbers.bits(),
        };
        (0..words).map(word).collect()
    };
    // Some tokens more than are visible, written in two parts.
    let tokens = visible + 7;
    let codes: Vec<Vec<Vec<u32>>> =
        (0..rows * members).map(|_| (0..tokens).map(|_| code()).collect()).collect();
    let queries: Vec<Vec<u32>> = codes.iter().map(|_| code()).collect();
    let on_device = |codes: &Vec<Vec<u32>>| {
        let on_device = Codes::new(device, bits, tokens).unwrap();
        for word in 0..words {
            let column: Vec<u32> = codes.iter().map(|code| code[word]).collect();
            let (some, more) = column.split_at(tokens / 2);
            on_device.write(word, 0, some).unwrap();
            on_device.write(word, some.len(), more).unwrap();
        }
        on_device
    };
    let on_device: Vec<_> = codes.iter().map(on_device).collect();
    let on_device: Vec<_> = on_device.iter().collect();
    let score = Score::new(device).unwrap();
    let found = score.run(&on_device, &queries.concat(), members, visible).unwrap();
    let agreeing = |of: usize, token: usize| {
        let pairs = queries[of].iter().zip(&codes[of][token]);
        bits - pairs.map(|(query, code)| (query ^ code).count_ones() as usize).sum::<usize>()
    };
    let scores = (0..rows)
        .flat_map(|row| (0..visible).map(move |token| (row * members..(row + 1) * members, token)));
    let expected: Vec<u16> =
        scores.map(|(of, token)| of.map(|of| agreeing(of, token)).sum::<usize>() as u16).collect();
    assert!(found.read().unwrap() == expected);
}

/// Scored, selected, listed and attended to, without a look at the host.
#[test]
fn from_codes_to_attention() {
    let Some(device) = emulator() else { return };
    check_from_codes_to_attention(&device);
}

pub(crate) fn check_from_codes_to_attention<D: Device>(device: &D) {
    let kind = KINDS[1];
    let visible = 300;
    let mut numbers = Numbers::new(3);
    let head = Head::usual(kind, visible, &mut numbers);
    let codes: Vec<u32> = (0..visible).map(|_| numbers.bits()).collect();
    let queries: Vec<u32> = (0..kind.group).map(|_| numbers.bits()).collect();
    let mut united = Picks::new(visible);
    for query in &queries {
        let scores = codes.iter().map(|code| 32 - (code ^ query).count_ones() as u16);
        let mut picks = Picks::new(visible);
        picks.take_range(0..4);
        picks.take_top(20, &scores.collect::<Vec<u16>>());
        united.union(&picks);
    }
    let expected = List { tokens: united.indices(), probabilities: None };

    let on_device = Codes::new(device, 32, visible).unwrap();
    on_device.write(0, 0, &codes).unwrap();
    let mut sink = Picks::new(visible);
    sink.take_range(0..4);
    let mut taken = Taken::of_picks(device, &vec![&sink; kind.group]).unwrap();
    let score = Score::new(device).unwrap();
    let scores = score.run(&vec![&on_device; kind.group], &queries, 1, visible).unwrap();
    let select = Select::new(device).unwrap();
    select.run(&scores, &vec![20; kind.group], &mut taken).unwrap();
    let lists: Lists<_> = ListTaken::new(device).unwrap().run(&taken, kind.group).unwrap();
    assert_eq!(lists.read().unwrap()[..], [&expected.tokens[..]]);
    check(&run(device, kind, &[&head], &lists).sums, &head, &expected);
}

/// Scores of every kind, selection and lists, in a context of so many tokens.
pub(crate) fn check_shape<D: Device>(device: &D, visible: usize, seed: u64) {
    check_select(device, (2, visible), seed, number);
    check_select(device, (2, visible), seed, short);
    check_scores(device, 1 + 40 * (seed as usize % 3), (2, 2), visible, seed);
    check_lists(device, 2, 2, visible, seed);
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = emulator() else { return };
    let refused = |message: String, because: &str| assert!(message.contains(because), "{message}");
    let picks = [Picks::new(10), Picks::new(11)];
    let error = Taken::of_picks(&device, &[&picks[0], &picks[1]]).unwrap_err();
    refused(error.to_string(), "visible tokens: expected 10, got 11");
    refused(Taken::new(&device, 1, 1 << 31).unwrap_err().to_string(), "less than 2^31");
    refused(
        Taken::new(&device, 65_536, 1).unwrap_err().to_string(),
        "rows: expected at most 65535",
    );
    refused(Scores::new(&device, 2, 2, &[0_u16; 3]).unwrap_err().to_string(), "scores: expected 4");

    let mut taken = Taken::new(&device, 2, 10).unwrap();
    let select = Select::<_, u16>::new(&device).unwrap();
    let mut run = |rows, visible, counts: &[usize]| {
        let scores = Scores::new(&device, rows, visible, &vec![0; rows * visible]).unwrap();
        select.run(&scores, counts, &mut taken).map(drop).unwrap_err().to_string()
    };
    refused(run(1, 10, &[1]), "rows of scores: expected 2, got 1");
    refused(run(2, 11, &[1, 1]), "scores of a row: expected 10, got 11");
    refused(run(2, 10, &[1]), "numbers of tokens to take: expected 2, got 1");
    for members in [0, 3] {
        let lists = ListTaken::new(&device).unwrap().run(&taken, members).map(drop);
        refused(lists.unwrap_err().to_string(), "rows: expected a multiple of");
    }

    let codes = [Codes::new(&device, 32, 10).unwrap(), Codes::new(&device, 64, 10).unwrap()];
    let score = Score::new(&device).unwrap();
    let run = |codes: &[&Codes<_>], queries: &[u32], members, visible| {
        score.run(codes, queries, members, visible).map(drop).unwrap_err().to_string()
    };
    refused(run(&[&codes[0], &codes[1]], &[0; 3], 1, 10), "bits of codes: expected 32, got 64");
    refused(run(&[&codes[0]], &[0; 2], 1, 10), "words of query codes: expected 1, got 2");
    refused(run(&[&codes[0]], &[0], 2, 10), "codes: expected a multiple of 2, got 1");
    refused(run(&[&codes[0]], &[0], 1, 13), "visible tokens: expected at most 12, got 13");
    refused(run(&[], &[0], 1, 10), "query codes: expected 0, got 1");
    let wide = Codes::new(&device, 40_000, 1).unwrap();
    refused(
        run(&[&wide, &wide], &vec![0; 2500], 2, 1),
        "bits of all members: expected at most 65535",
    );
}
