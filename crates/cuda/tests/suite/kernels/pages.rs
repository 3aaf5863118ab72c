//! Bounds and scores of pages: `pages.cu`, against definitions.

use proptest::prelude::*;
use vattention_cuda::Device;
use vattention_cuda::launch::{Array, DeviceScores, PageBounds, ScorePages, Work};
use vattention_cuda_emulator::ThreadSchedule;

use super::steps::Clock;
use super::world::{Head, KINDS, Kind, Numbers, emulator};

/// Tokens of a page.
pub(crate) const PAGES: [usize; 5] = [1, 2, 16, 33, 1000];

/// The sum over channels of the smallest key times a factor and the largest key times another one.
fn upper_bound(keys: &[Vec<f32>], [of_least, of_largest]: [&[f32]; 2]) -> f64 {
    let product = |channel: usize| {
        let numbers = keys.iter().map(|key| f64::from(key[channel]));
        let least = numbers.clone().fold(f64::INFINITY, f64::min);
        let largest = numbers.fold(f64::NEG_INFINITY, f64::max);
        f64::from(of_least[channel]) * least + f64::from(of_largest[channel]) * largest
    };
    (0..of_least.len()).map(product).sum()
}

/// Checks the scores of two heads' pages for a kind's group of queries, as tokens become visible.
/// In the last page only visible tokens count.
pub(crate) fn check_pages<D: Device>(
    device: &D,
    kind: Kind,
    page: usize,
    capacity: usize,
    seed: u64,
) {
    let mut numbers = Numbers::new(seed);
    let heads: Vec<Head> = (0..2).map(|_| Head::usual(kind, capacity, &mut numbers)).collect();
    let pages: Vec<_> = heads.iter().map(|head| head.pages(device, kind)).collect();
    let bounds: Vec<_> = (heads.iter())
        .map(|_| PageBounds::new(device, kind.layout(), page, capacity).unwrap())
        .collect();
    let rows = heads.len() * kind.group;
    let clock = Clock::new(device, capacity);
    let score = ScorePages::new(device, kind.layout(), kind.group, page).unwrap();
    let scores = DeviceScores::for_pages(device, rows, capacity, page).unwrap();
    let parts: Vec<Vec<f32>> =
        (0..2).map(|_| (0..rows * kind.head_dim).map(|_| numbers.next()).collect()).collect();
    let queries = Array::new(device, &parts.concat()).unwrap();
    let mut indexed = 0;
    // The number of visible tokens grows, shrinks and grows again.
    for visible in [capacity.div_ceil(3), capacity, capacity.div_ceil(2), capacity] {
        indexed = indexed.min(visible / page);
        clock.set(visible);
        let mut work = Work::new(device);
        let inputs: Vec<_> = pages
            .iter()
            .zip(&bounds)
            .map(|(pages, bounds)| (pages, bounds, indexed as u32))
            .collect();
        score.add_heads(&mut work, &clock.step, &inputs, &queries, &scores).unwrap();
        work.run().unwrap();
        indexed = visible / page;
        let count = visible.div_ceil(page);
        let found = scores.read(count).unwrap();
        for (i, &found) in found.iter().enumerate() {
            let (row, begin) = (i / count, i % count * page);
            let keys = &heads[row / kind.group].keys[begin..visible.min(begin + page)];
            let factors =
                |part: &'_ Vec<f32>| part[row * kind.head_dim..][..kind.head_dim].to_vec();
            let [least, largest] = [factors(&parts[0]), factors(&parts[1])];
            let expected = upper_bound(keys, [&least, &largest]);
            assert!((f64::from(found) - expected).abs() < 1e-4, "{found} for {expected}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 30, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn scores_are_upper_bounds(
        kind in prop::sample::select(&KINDS[..]),
        page in prop::sample::select(&PAGES[..]),
        capacity in prop::sample::select(&[1_usize, 16, 31, 32, 33, 256, 300][..]),
        schedule in prop::sample::select(ThreadSchedule::several().to_vec()),
        seed in 0_u64..1 << 32,
    ) {
        let Some(device) = emulator() else { return Ok(()) };
        check_pages(&device.with_order(schedule), kind, page, capacity, seed);
    }
}

/// A head has more pages than its blocks bound in parallel.
#[test]
fn blocks_loop_over_the_pages_of_a_long_prompt() {
    let Some(device) = emulator() else { return };
    check_pages(&device, KINDS[5], 1, 800, 5);
}
