//! All that chooses tokens, in one record: from codes to what is attended to, and what was read.

use std::slice::from_ref;

use vattention_core::{Picks, sample::Order};
use vattention_cuda::Device;
use vattention_cuda::launch::{
    Array, DeviceCodes, Draw, Drawing, ListTaken, Lists, Progress, Recorded, ScoreCodes, Scores,
    Select, Selecting, Take, Taken, Work,
};
use vattention_cuda_emulator::ThreadSchedule;

use super::attend::check;
use super::steps::{Clock, stream, united};
use super::world::{Head, KINDS, List, Numbers, emulator, run};

const CAPACITY: usize = 300;
const SINK: u32 = 4;
const TOP: usize = 20;
const DRAWN: usize = 30;

/// What steps of one KV head write and leave, for some query heads.
struct Room<D: Device> {
    clock: Clock<D>,
    codes: DeviceCodes<D>,
    queries: Array<D, u32>,
    keys: Array<D, u32>,
    ranges: Array<D, u32>,
    lists: Lists<D>,
    progress: Progress<D>,
    /// Tokens of all lists, and with what was drawn.
    read: Array<D, u32>,
    step: Recorded<D>,
}

impl<D: Device> Room<D> {
    fn new(device: &D, members: usize) -> Self {
        let clock = Clock::new(device, CAPACITY);
        let codes = DeviceCodes::new(device, 32, CAPACITY).unwrap();
        let queries = Array::zeros(device, members).unwrap();
        let keys = Array::zeros(device, 8).unwrap();
        let ranges = Array::zeros(device, 4 * members).unwrap();
        let counts = Array::new(device, &vec![TOP as u32; members]).unwrap();
        let taken = Taken::new(device, members, CAPACITY).unwrap();
        let scores = Scores::new(device, members, CAPACITY).unwrap();
        let selecting = Selecting::new(device, members, CAPACITY).unwrap();
        let lists = Lists::room(device, 1, CAPACITY).unwrap();
        let progress = Progress::new(device, 1, CAPACITY).unwrap();
        let drawing = Drawing::new(device, &keys, CAPACITY).unwrap();
        let read = Array::zeros(device, 1).unwrap();
        progress.set(from_ref(&(0..DRAWN))).unwrap();

        let (take, list) = (Take::new(device).unwrap(), ListTaken::new(device).unwrap());
        let (select, sample) = (Select::new(device).unwrap(), Draw::new(device).unwrap());
        let listing = list.counts(1, CAPACITY).unwrap();
        let (mut work, now) = (Work::new(device), &clock.now);
        take.add(&mut work, now, &ranges, &taken, true).unwrap();
        let of_members = vec![&codes; members];
        let score = ScoreCodes::new(device).unwrap();
        score.add_codes(&mut work, now, &of_members, &queries, &scores).unwrap();
        select.add(&mut work, now, &scores, &counts, &taken, &selecting).unwrap();
        list.add(&mut work, now, &taken, members, &lists, &listing).unwrap();
        sample.add_count(&mut work, now, &taken, members, &drawing).unwrap();
        sample.add_draw(&mut work, now, &taken, members, &drawing, &progress).unwrap();
        take.add_drawn(&mut work, &progress, &taken, members).unwrap();
        list.add_total(&mut work, now, &taken, members, &read, &listing).unwrap();
        let step = work.record().unwrap();
        Self { clock, codes, queries, keys, ranges, lists, progress, read, step }
    }

    /// The first tokens and the last, and the best by their codes, of each query head.
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
    let room = Room::new(device, kind.group);
    let mut numbers = Numbers::new(3);
    let head = Head::usual(kind, CAPACITY, &mut numbers);
    for visible in [230, CAPACITY, 150] {
        let codes: Vec<u32> = (0..visible).map(|_| numbers.bits()).collect();
        let queries: Vec<u32> = (0..kind.group).map(|_| numbers.bits()).collect();
        let united = room.step(visible, &codes, &queries);
        let expected = List { tokens: united.indices(), probabilities: None };
        assert_eq!(room.lists.read().unwrap()[..], [&expected.tokens[..]]);
        check(&run(device, kind, &[&head], &room.lists).sums, &head, &expected);

        let mut drawn = Vec::new();
        let order = Order::new(visible, &stream(visible as u64, 0));
        order.draws().fill(&united, DRAWN, &mut drawn);
        assert_eq!(room.progress.tokens().unwrap()[..], [&drawn[..]]);
        assert_eq!(room.read.read().unwrap(), [(united.len() + DRAWN) as u32]);
    }
}

/// Chosen, listed and attended to, without a look at the host.
#[test]
fn from_codes_to_attention() {
    let Some(device) = emulator() else { return };
    for schedule in ThreadSchedule::several() {
        check_choice(&device.clone().with_order(schedule));
    }
}
