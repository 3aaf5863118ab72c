//! Speed of dense attention and of gathered rows, relative to reading memory in order.
//!
//! `cargo bench -p vattention-backends --bench memory -- [avx512|avx2|scalar] [f32|f16|bf16|q8]
//! [seconds] [hot]` measures steps of one KV head on one thread, with rows of one or several number
//! types (default bf16). Every case has its own layers with at least 128 MiB of rows and reads one
//! layer after the other, so that rows come from memory. In a round each case reads all of its
//! layers once; ratios are taken within a round, and the table shows their medians. With `hot`, few
//! rows are read repeatedly from the second-level cache.
//!
//! "step" is a call of `attend`; "rows" is the part of it that reads keys and values.

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use multiversion::multiversion;
use ndarray::Array3;
use serde::{Deserialize, Serialize};
use vattention_backends::{Cpu, Level};
use vattention_core::step::Shape;
use vattention_core::{
    Attention, Backend, FallBack, Options, Picks, PipelineConfig, Result, Row, Selector,
    SelectorConfig, Site, Storage, typetag,
};

/// Least number of bytes of keys and values that a case reads in a round.
const BYTES_PER_ROUND: usize = 128 << 20;

/// Number of tokens that are appended in one call.
const TOKENS_PER_CALL: usize = 256;

/// Number of rounds that are not counted.
const WARM_UP: usize = 2;

/// Least number of rounds that are counted.
const LEAST_ROUNDS: usize = 7;

/// Tokens, elements of a head, query heads.
const CONTEXTS: [(usize, usize, usize); 5] =
    [(2048, 64, 3), (6144, 64, 3), (8192, 128, 4), (32_768, 128, 4), (131_072, 128, 4)];

/// Contexts that fit into the second-level cache.
const HOT_CONTEXTS: [(usize, usize, usize); 2] = [(768, 64, 3), (768, 128, 4)];

/// Percentages of the tokens that are read; 100 is dense attention.
const PERCENTAGES: [usize; 3] = [100, 5, 10];

struct Setting {
    level: Level,
    storages: Vec<Storage>,
    time: Duration,
    hot: bool,
}

fn main() {
    let mut setting = Setting {
        level: Level::best(),
        storages: Vec::new(),
        time: Duration::from_secs(3),
        hot: false,
    };
    // `cargo bench` adds an option of its own.
    for word in std::env::args().skip(1).filter(|word| !word.starts_with("--")) {
        match (word.as_str(), word.parse(), word.parse()) {
            ("avx512", ..) => setting.level = Level::Avx512,
            ("avx2", ..) => setting.level = Level::Avx2,
            ("scalar", ..) => setting.level = Level::Scalar,
            ("hot", ..) => setting.hot = true,
            (_, Ok(storage), _) => setting.storages.push(storage),
            (_, _, Ok(seconds)) => setting.time = Duration::from_secs_f64(seconds),
            _ => panic!("expected an instruction set, a number type or seconds, found {word}"),
        }
    }
    if setting.storages.is_empty() {
        setting.storages.push(Storage::Bf16);
    }
    println!("{:?}, one thread, medians", setting.level);
    println!(
        "tokens  d    g  dtype  read   us a step  ns a row  in order, GB/s  of in order: step  rows"
    );
    let contexts = if setting.hot { &HOT_CONTEXTS[..] } else { &CONTEXTS };
    for &(tokens, dim, group) in contexts {
        measure(&setting, tokens, dim, group);
    }
}

/// Cases of one number type, and memory of the size of their layers.
struct StorageCases {
    storage: Storage,
    /// Bytes of a layer.
    bytes: usize,
    memory: Vec<MmapMut>,
    cases: [Case; PERCENTAGES.len()],
    /// Speeds of reading in order, in GB/s.
    speeds: Vec<f64>,
}

/// Steps over layers that no other case reads.
struct Case {
    percent: usize,
    layers: Vec<Box<dyn Attention>>,
    queries: Array3<f32>,
    rounds: Vec<Round>,
}

/// Results of one round: seconds per step, and fractions of the speed of reading in order.
#[derive(Clone, Copy)]
struct Round {
    step: f64,
    step_share: f64,
    rows_share: f64,
}

fn measure(setting: &Setting, tokens: usize, dim: usize, group: usize) {
    let make = |&storage: &Storage| StorageCases::new(setting, storage, tokens, dim, group);
    let mut storages: Vec<StorageCases> = setting.storages.iter().map(make).collect();
    let (begin, mut rounds) = (Instant::now(), 0);
    while rounds < WARM_UP + LEAST_ROUNDS || begin.elapsed() < setting.time {
        for cases in &mut storages {
            cases.run(rounds >= WARM_UP);
        }
        rounds += 1;
    }
    for StorageCases { storage, cases, speeds, .. } in storages {
        let speed = median(speeds);
        for case in &cases {
            let figure = |field: fn(&Round) -> f64| median(case.rounds.iter().map(field).collect());
            let step = figure(|round| round.step);
            let ns = step * 1e9 / (tokens * case.percent) as f64 * 100.0;
            println!(
                "{tokens:6} {dim:3} {group:3}  {:5} {:4} % {:11.1} {ns:9.1} {speed:15.1} {:18.2} \
                 {:5.2}",
                storage.name(),
                case.percent,
                step * 1e6,
                figure(|round| round.step_share),
                figure(|round| round.rows_share),
            );
        }
    }
}

impl StorageCases {
    fn new(setting: &Setting, storage: Storage, tokens: usize, dim: usize, group: usize) -> Self {
        let bytes = tokens * 2 * storage.row_bytes(dim);
        let layers = if setting.hot { 1 } else { BYTES_PER_ROUND.div_ceil(bytes) };
        let cases = PERCENTAGES.map(|percent| Case {
            percent,
            layers: (0..layers)
                .map(|layer| start((setting, storage), tokens, dim, group, percent, layer))
                .collect(),
            queries: Array3::from_shape_fn((group, 1, dim), |(i, _, j)| number(i * dim + j + 3)),
            rounds: Vec::new(),
        });
        let memory = (0..layers).map(|_| allocate(bytes)).collect();
        Self { storage, bytes, memory, cases, speeds: Vec::new() }
    }

    /// Runs all cases, and records the round if it counts.
    fn run(&mut self, counts: bool) {
        let seconds_in_order = read_in_order(&self.memory);
        for case in &mut self.cases {
            let round = case.run(seconds_in_order);
            if counts {
                case.rounds.push(round);
            }
        }
        self.speeds.push(self.bytes as f64 / seconds_in_order / 1e9);
    }
}

impl Case {
    /// Runs a step in each layer.
    fn run(&mut self, seconds_in_order: f64) -> Round {
        let (mut steps, mut rows) = (Vec::new(), Vec::new());
        for layer in &mut self.layers {
            let begin = Instant::now();
            let output = black_box(layer.attend(black_box(self.queries.view()), None).unwrap());
            steps.push(begin.elapsed().as_secs_f64());
            rows.push(output.timings.unwrap().attend.as_secs_f64());
        }
        let read = seconds_in_order * self.percent as f64 / 100.0;
        let (step, rows) = (median(steps), median(rows));
        Round { step, step_share: read / step, rows_share: read / rows }
    }
}

fn start(
    (setting, storage): (&Setting, Storage),
    tokens: usize,
    dim: usize,
    group: usize,
    percent: usize,
    layer: usize,
) -> Box<dyn Attention> {
    let mut pipeline = PipelineConfig::default();
    if percent < 100 {
        pipeline.selectors.push(Box::new(RandomTokens { percent, tokens }));
    }
    let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
    let options = Options {
        storage,
        threads: Some(1),
        fall_back: FallBack::Never,
        timed: true,
        ..Options::default()
    };
    let cpu = Cpu::limited_to(setting.level);
    let mut attention = cpu.start(&Arc::new(pipeline), layer, shape, &options).unwrap();
    let rows = |shift: usize| {
        Array3::from_shape_fn((1, TOKENS_PER_CALL, dim), |(_, i, j)| {
            number(i * dim + j + shift) + 0.2
        })
    };
    let (keys, values) = (rows(layer), rows(layer + 7));
    for _ in (0..tokens).step_by(TOKENS_PER_CALL) {
        attention.append(keys.view(), values.view()).unwrap();
    }
    attention
}

/// Pseudorandom number between -1 and 1.
fn number(i: usize) -> f32 {
    (hash(i) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn hash(i: usize) -> u64 {
    let x = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// Picks a fixed random subset of the tokens for all query heads.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RandomTokens {
    percent: usize,
    tokens: usize,
}

#[typetag::serde(name = "random-tokens")]
impl SelectorConfig for RandomTokens {
    fn build(&self, site: &Site) -> Result<Box<dyn Selector>> {
        let mut tokens: Vec<usize> = (0..self.tokens).collect();
        tokens.sort_by_cached_key(|&token| hash(site.layer << 32 | token));
        tokens.truncate(self.tokens * self.percent / 100);
        Ok(Box::new(FixedTokens(tokens)))
    }
}

#[derive(Clone)]
struct FixedTokens(Vec<usize>);

impl Selector for FixedTokens {
    fn group_wide(&self) -> bool {
        true
    }

    fn select(&self, _: &Row<'_>, picks: &mut Picks) {
        picks.take_all(self.0.iter().copied());
    }
}

/// Allocates memory, in huge pages if the system has any, and writes to all of it.
fn allocate(bytes: usize) -> MmapMut {
    let mut memory = MmapMut::map_anon(bytes).unwrap();
    #[cfg(target_os = "linux")]
    let _ = memory.advise(Advice::HugePage);
    memory.fill(1);
    memory
}

/// Sums each layer's memory, and returns the median number of seconds per layer.
fn read_in_order(memory: &[MmapMut]) -> f64 {
    let seconds = memory.iter().map(|layer| {
        let begin = Instant::now();
        black_box(sum(layer));
        begin.elapsed().as_secs_f64()
    });
    median(seconds.collect())
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq", "x86_64+avx2+fma"))]
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0_u64; 64];
    for words in bytes.as_chunks::<512>().0 {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
