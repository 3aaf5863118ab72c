//! The whole choice of tokens in one record: from codes to attention and the count of tokens read.

use std::slice::from_ref;

use vattention_core::{Picks, sample::Order};
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, DeviceCodes, DeviceScores, Draw, DrawInputs, ListTaken, Lists, Progress, RecordedWork,
    ScoreCodes, Select, SelectBuffers, Take, Taken, Work,
};
use vattention_cuda_emulator::ThreadSchedule;

use super::attend::check;
use super::steps::{Clock, stream, united};
use super::world::{Head, KINDS, List, Numbers, emulator, run};

const CAPACITY: usize = 300;
const SINK: u32 = 4;
const TOP: usize = 20;
const DRAWN: usize = 30;

/// Inputs and outputs of steps of one KV head, for some query heads.
struct ChoiceArrays<D: Device> {
    clock: Clock<D>,
    codes: DeviceCodes<D>,
    queries: Array<D, u32>,
    keys: Array<D, u32>,
    ranges: Array<D, u32>,
    lists: Lists<D>,
    progress: Progress<D>,
    /// Number of distinct tokens read, drawn ones included.
    read: Array<D, u32>,
    step: RecordedWork<D>,
}

impl<D: Device> ChoiceArrays<D> {
    fn new(device: &D, members: usize) -> Self {
        let clock = Clock::new(device, CAPACITY);
        let codes = DeviceCodes::new(device, 32, CAPACITY).unwrap();
        let queries = Array::zeros(device, members).unwrap();
        let keys = Array::zeros(device, 8).unwrap();
        let ranges = Array::zeros(device, 4 * members).unwrap();
        let counts = Array::new(device, &vec![TOP as u32; members]).unwrap();
        let taken = Taken::new(device, members, CAPACITY).unwrap();
        let scores = DeviceScores::new(device, members, CAPACITY).unwrap();
        let buffers = SelectBuffers::new(device, members, CAPACITY).unwrap();
        let lists = Lists::room(device, 1, CAPACITY).unwrap();
        let progress = Progress::new(device, 1, CAPACITY).unwrap();
        let inputs = DrawInputs::new(device, &keys, CAPACITY).unwrap();
        let read = Array::zeros(device, 1).unwrap();
        progress.set(from_ref(&(0..DRAWN))).unwrap();

        let (take, list) = (Take::new(device).unwrap(), ListTaken::new(device).unwrap());
        let (select, sample) = (Select::new(device).unwrap(), Draw::new(device).unwrap());
        let listing = list.counts(1, CAPACITY).unwrap();
        let (mut work, step) = (Work::new(device), &clock.step);
        take.add(&mut work, step, &ranges, &taken, true).unwrap();
        let member_codes = vec![&codes; members];
        let score = ScoreCodes::new(device).unwrap();
        score.add_codes(&mut work, step, &member_codes, &queries, &scores).unwrap();
        select.add(&mut work, step, &scores, &counts, &taken, &buffers).unwrap();
        list.add(&mut work, step, &taken, members, &lists, &listing).unwrap();
        sample.add_count(&mut work, step, &taken, members, &inputs).unwrap();
        sample.add_draw(&mut work, step, &taken, members, &inputs, &progress).unwrap();
        take.add_drawn(&mut work, &progress, &taken, members).unwrap();
        list.add_total(&mut work, step, &taken, members, &read, &listing).unwrap();
        let step = work.record().unwrap();
        Self { clock, codes, queries, keys, ranges, lists, progress, read, step }
    }

    /// Runs a step that takes the first and last tokens, and each query head's best ones by codes.
    /// Returns core's choice of the same tokens.
    fn step(&self, visible: usize, codes: &[u32], queries: &[u32]) -> Picks {
        let [first, last] = [[0, SINK], [visible as u32 - SINK, visible as u32]];
        let (keys, _) = Order::new(visible, &stream(visible as u64, 0)).parameters();
        self.clock.set(visible);
        self.codes.write(0, 0, codes).unwrap();
        self.queries.write(queries, 0).unwrap();
        self.keys.write(&keys, 0).unwrap();
        self.ranges
            .write([first, last].as_flattened().repeat(queries.len()).as_slice(), 0)
            .unwrap();
        self.step.replay().unwrap();
        let pick = |query: &u32| {
            let scores = codes.iter().map(|code| 32 - (code ^ query).count_ones() as u16);
            let mut picks = Picks::new(visible);
            for [first, end] in [first, last] {
                picks.take_range(first as usize..end as usize);
            }
            picks.take_top(TOP, &scores.collect::<Vec<u16>>());
            picks
        };
        let picks: Vec<Picks> = queries.iter().map(pick).collect();
        united(&picks, visible, queries.len()).remove(0)
    }
}

pub(crate) fn check_choice<D: Device>(device: &D) {
    let kind = KINDS[1];
    let arrays = ChoiceArrays::new(device, kind.group);
    let mut numbers = Numbers::new(3);
    let head = Head::usual(kind, CAPACITY, &mut numbers);
    for visible in [230, CAPACITY, 150] {
        let codes: Vec<u32> = (0..visible).map(|_| numbers.bits()).collect();
        let queries: Vec<u32> = (0..kind.group).map(|_| numbers.bits()).collect();
        let united = arrays.step(visible, &codes, &queries);
        let expected = List { tokens: united.indices(), probabilities: None };
        assert_eq!(arrays.lists.read().unwrap()[..], [&expected.tokens[..]]);
        check(&run(device, kind, &[&head], &arrays.lists).sums, &head, &expected);

        let mut drawn = Vec::new();
        let order = Order::new(visible, &stream(visible as u64, 0));
        order.draws().fill(&united, DRAWN, &mut drawn);
        assert_eq!(arrays.progress.tokens().unwrap()[..], [&drawn[..]]);
        assert_eq!(arrays.read.read().unwrap(), [(united.len() + DRAWN) as u32]);
    }
}

/// Tokens are chosen, listed and attended to without the host.
#[test]
fn from_codes_to_attention_on_the_device() {
    let Some(device) = emulator() else { return };
    for schedule in ThreadSchedule::several() {
        check_choice(&device.clone().with_order(schedule));
    }
}
