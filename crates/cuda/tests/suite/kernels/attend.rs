//! Attention over token lists: `attend.cu` and `combine.cu`.

use std::sync::Arc;

use proptest::prelude::*;
use vattention_core::{Error, Storage, step::Softmax};
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, AttendLists, CombineSums, Lists, Logits, Pages, Records, RowLayout, Sums, Work,
};
use vattention_cuda_emulator::ThreadSchedule;

use super::world::{Head, KINDS, Kind, List, Numbers, attend, emulator, run};

/// Lengths around the sizes of warps and items.
const LENGTHS: [usize; 12] = [0, 1, 2, 31, 32, 33, 127, 255, 256, 257, 513, 600];

/// Outputs must be within 1e-5 of the largest value of f64 sums over the same tokens.
pub(crate) fn check(found: &[Softmax], head: &Head, list: &List) {
    let expected = head.softmax(list);
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        if list.tokens.is_empty() {
            assert_eq!((found.shift(), found.denominator()), (f64::NEG_INFINITY, 0.0));
            assert!(found.numerator().iter().all(|&n| n == 0.0));
            continue;
        }
        let apart = (found.log_denominator() - expected.log_denominator()).abs();
        assert!(
            apart < 1e-5,
            "ln D: {} for {}",
            found.log_denominator(),
            expected.log_denominator()
        );
        let outputs = found.output().into_iter().zip(expected.output());
        let apart = outputs.fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart <= 1e-5 * head.largest_value(), "N / D: apart by {apart:e}");
    }
}

/// Checks some problems of a kind, with lists of different lengths.
pub(crate) fn check_problems<D: Device>(device: &D, kind: Kind, weighted: bool, seed: u64) {
    let mut numbers = Numbers::new(seed);
    let problems: Vec<(Head, List)> = (0..=numbers.below(3))
        .map(|_| {
            let length = LENGTHS[numbers.below(LENGTHS.len())];
            let rows = (length + numbers.below(50)).max(1);
            let list = List::random(length, rows, weighted, &mut numbers);
            (Head::usual(kind, rows, &mut numbers), list)
        })
        .collect();
    let borrowed: Vec<_> = problems.iter().map(|(head, list)| (head, list)).collect();
    let found = attend(device, kind, &borrowed);
    let places = found.logits.len() / problems.len();
    for (i, ((head, list), sums)) in problems.iter().zip(found.sums.chunks(kind.group)).enumerate()
    {
        check(sums, head, list);
        check_logits(&found.logits[i * places..][..places], head, list);
    }
}

/// Checks the logits of one list, `[queries, places]`.
fn check_logits(found: &[f32], head: &Head, list: &List) {
    let places = found.len() / head.queries.len();
    for query in 0..head.queries.len() {
        for (&token, &found) in list.tokens.iter().zip(&found[query * places..]) {
            let expected = head.logit(query, token);
            assert!((f64::from(found) - expected).abs() < 2e-5, "{found} for {expected}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn sums_are_those_in_f64(
        kind in prop::sample::select(&KINDS[..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        weighted: bool,
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_problems(&device.with_order(schedule), kind, weighted, seed);
    }
}

#[test]
fn short_lists_and_the_ends_of_items() {
    let Some(device) = emulator() else { return };
    for (seed, &length) in LENGTHS.iter().enumerate() {
        let mut numbers = Numbers::new(seed as u64);
        let kind = KINDS[1 + seed % 3];
        let head = Head::usual(kind, length.max(1), &mut numbers);
        let list = List::random(length, length.max(1), false, &mut numbers);
        check(&attend(&device, kind, &[(&head, &list)]).sums, &head, &list);
    }
}

/// The list has more items than `combine.cu` processes in one round.
#[test]
fn a_long_list() {
    let Some(device) = emulator() else { return };
    let (kind, length) = (KINDS[3], 129 * 256 + 1);
    let mut numbers = Numbers::new(8);
    let head = Head::usual(kind, length, &mut numbers);
    let list = List::random(length, length, true, &mut numbers);
    for schedule in ThreadSchedule::several() {
        let device = device.clone().with_order(schedule);
        check(&attend(&device, kind, &[(&head, &list)]).sums, &head, &list);
    }
}

/// Logits are whole numbers up to ten thousand, so that differences from the largest are exact.
#[test]
fn huge_logits() {
    let Some(device) = emulator() else { return };
    for (seed, &kind) in KINDS.iter().enumerate() {
        let mut numbers = Numbers::new(seed as u64);
        let head = Head::huge(kind, 300, &mut numbers);
        let list = List::random(280, 300, seed % 2 == 0, &mut numbers);
        let largest = list.tokens.iter().map(|&token| head.logit(0, token).abs());
        assert!(largest.fold(0.0, f64::max) > 3e3);
        check(&attend(&device, kind, &[(&head, &list)]).sums, &head, &list);
    }
}

/// Results are the same bits for every schedule, and for every set of other problems.
#[test]
fn results_do_not_depend_on_schedules_or_other_problems() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[2];
    let mut numbers = Numbers::new(5);
    let problems: Vec<(Head, List)> = [700, 3, 256]
        .map(|length| {
            let list = List::random(length, 710, true, &mut numbers);
            (Head::usual(kind, 710, &mut numbers), list)
        })
        .into();
    let borrowed: Vec<_> = problems.iter().map(|(head, list)| (head, list)).collect();
    let found = attend(&device, kind, &borrowed);
    for schedule in ThreadSchedule::several() {
        assert_eq!(attend(&device.clone().with_order(schedule), kind, &borrowed), found);
    }
    for (sums, &problem) in found.sums.chunks(kind.group).zip(&borrowed) {
        assert_eq!(attend(&device, kind, &[problem]).sums, sums);
    }
}

/// Without tokens, a list is a prefix of the rows.
#[test]
fn lists_without_tokens_read_a_prefix_of_the_rows() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[3];
    let mut numbers = Numbers::new(6);
    let heads: Vec<Head> = (0..4).map(|_| Head::usual(kind, 300, &mut numbers)).collect();
    let heads: Vec<&Head> = heads.iter().collect();
    let lengths = [300, 0, 1, 256];
    let found = run(&device, kind, &heads, &Lists::beginnings(&device, &lengths).unwrap());
    for ((head, length), sums) in heads.iter().zip(lengths).zip(found.sums.chunks(kind.group)) {
        let list = List { tokens: (0..length as u32).collect(), probabilities: None };
        check(sums, head, &list);
        assert_eq!(attend(&device, kind, &[(head, &list)]).sums, sums);
    }
}

/// Recorded kernels own the rows and lists that they read, and repeat their results.
#[test]
fn recorded_kernels_own_their_memory() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[2];
    let mut numbers = Numbers::new(8);
    let head = Head::usual(kind, 600, &mut numbers);
    let list = List::random(300, 600, true, &mut numbers);
    let expected = attend(&device, kind, &[(&head, &list)]).sums;
    let sums = Sums::new(&device, kind.group, kind.value_dim).unwrap();
    let recorded = {
        let pages = head.pages(&device, kind);
        let probabilities = list.probabilities.as_deref();
        let lists = Lists::new(&device, &[0, 300], &list.tokens, probabilities).unwrap();
        let queries = Array::new(&device, &head.queries.concat()).unwrap();
        let attend = AttendLists::new(&device, kind.layout(), kind.group).unwrap();
        let records = attend.records(1, lists.longest()).unwrap();
        let mut work = Work::new(&device);
        attend.add_heads(&mut work, &[&pages], &lists, &queries, &records, None).unwrap();
        let combine = CombineSums::new(&device).unwrap();
        combine.add(&mut work, &records, &lists, &sums, false).unwrap();
        work.record().unwrap()
    };
    // New allocations overwrite memory that was freed.
    let _others: Vec<_> = (0..64).map(|_| head.pages(&device, kind)).collect();
    for _ in 0..2 {
        recorded.replay().unwrap();
        assert_eq!(sums.read().unwrap(), expected);
    }
}

#[test]
fn empty_lists_and_no_lists() {
    let Some(device) = emulator() else { return };
    let kind = KINDS[1];
    let lists = Lists::new(&device, &[0], &[], None).unwrap();
    assert!(run(&device, kind, &[], &lists).sums.is_empty());
    let head = Head::usual(kind, 1, &mut Numbers::new(0));
    let list = List { tokens: Vec::new(), probabilities: None };
    check(&attend(&device, kind, &[(&head, &list)]).sums, &head, &list);
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let Some(device) = emulator() else { return };
    let refused = |result: Result<(), Error>, because: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(because), "{message}");
    };
    for (head_dim, value_dim) in [(0, 64), (257, 64), (64, 0), (64, 257)] {
        let layout = RowLayout::new(Storage::F16, head_dim, value_dim, 4);
        refused(layout.map(drop), "expected 1 to 256 on CUDA");
    }
    refused(
        RowLayout::new(Storage::Q8, 64, 64, 4).map(drop),
        "storage: expected f32, f16 or bf16 on CUDA",
    );
    refused(
        RowLayout::new(Storage::F16, 64, 64, 31).map(drop),
        "rows in a page: expected at most 2^30",
    );
    let kind = KINDS[1];
    let short = Array::zeros(&device, kind.layout().page_bytes() - 1).unwrap();
    let pages = Pages::new(&device, kind.layout(), vec![Arc::new(short)]);
    refused(pages.map(drop), "bytes of a page: expected 2048, got 2047");
    for group in [0, 17] {
        let attend = AttendLists::new(&device, kind.layout(), group);
        refused(attend.map(drop), "query heads for each KV head: expected 1 to 16 on CUDA");
    }
    let lists =
        |indptr: &[usize], p: Option<&[f32]>| Lists::new(&device, indptr, &[1, 2, 3], p).map(drop);
    refused(lists(&[0, 2], None), "indptr: expected 0 to 3, ascending");
    refused(lists(&[0, 3, 2, 3], None), "indptr");
    refused(lists(&[0, 3], Some(&[1.0, 0.5])), "probabilities: expected 3, got 2");
    for p in [0.0, -0.5, 1.5, f32::NAN] {
        refused(lists(&[0, 3], Some(&[1.0, p, 1.0])), "a probability: expected a number in (0, 1]");
    }
    let head = Head::usual(kind, 20, &mut Numbers::new(0));
    let pages = head.pages(&device, kind);
    let queries = Array::new(&device, &head.queries.concat()).unwrap();
    let attend = AttendLists::new(&device, kind.layout(), kind.group).unwrap();
    let run = |heads: &[&Pages<_>], token, queries, logits: Option<&Logits<_>>| {
        let lists = Lists::new(&device, &[0, 2], &[0, token], None).unwrap();
        attend.run(heads, &lists, queries, logits).map(drop)
    };
    assert!(run(&[&pages], 23, &queries, None).is_ok());
    refused(run(&[&pages], 24, &queries, None), "list 0: expected tokens below 24, got 24");
    refused(run(&[], 0, &queries, None), "heads: expected 1, got 0");
    let few = Array::zeros(&device, 3).unwrap();
    let little = Logits::new(&device, 1, kind.group, 1).unwrap();
    refused(run(&[&pages], 0, &few, None), "queries: expected 256, got 3");
    refused(run(&[&pages], 0, &queries, Some(&little)), "logits: expected room for 2 tokens");
    let other = Kind { log2_page: 2, ..kind };
    refused(run(&[&head.pages(&device, other)], 0, &queries, None), "rows: expected RowLayout");

    let lists = Lists::beginnings(&device, &[20]).unwrap();
    let add = |records: &Records<_>| {
        let mut work = Work::new(&device);
        attend.add_heads(&mut work, &[&pages], &lists, &queries, records, None)
    };
    let narrow = Kind { value_dim: 32, ..kind };
    let narrow = AttendLists::new(&device, narrow.layout(), kind.group).unwrap();
    refused(add(&narrow.records(1, 20).unwrap()), "rows of records: expected RowLayout");
    let none = attend.records(1, 0).unwrap();
    refused(add(&none), "records: expected room for 20 tokens");
    let sums = Sums::new(&device, kind.group, kind.value_dim).unwrap();
    let combine = CombineSums::new(&device).unwrap();
    let merged = combine.add(&mut Work::new(&device), &none, &lists, &sums, false);
    refused(merged, "records: expected room for 20 tokens");
}
