//! How fast a GPU reads rows: all of them in order, and lists of 5 and 10 % of them.
//!
//!     gather [TOKENS]       on the first GPU, 131072 tokens by default
//!     gather --emulated     on the host, a few tokens: shows that it runs, times mean nothing
//!
//! Eight KV heads of 128 numbers in bf16, four query heads each. A rate counts the bytes of the rows
//! that are read; it stands beside that of a copy on the device, read and written bytes counted.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use vattention_core::Storage;
use vattention_cuda::launch::{Array, Attend, Combine, Lists, Pages, RowLayout};
use vattention_cuda::{Device, Driver};
use vattention_cuda_emulator::Emulator;

const KV_HEADS: usize = 8;
const GROUP: usize = 4;
const DIM: usize = 128;
const LOG2_PAGE: u32 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("--emulated") {
        let emulator = Emulator::new()?;
        println!("{}", emulator.summary());
        return measure(&emulator, 600, None);
    }
    let tokens = argument.map_or(Ok(131_072), |tokens| tokens.parse())?;
    let driver = Driver::open()?;
    let rate = copy_rate()?;
    println!("{}, which copies {:.2} TB/s", driver.summary(), rate / 1e12);
    measure(&driver, tokens, Some(rate))
}

fn measure<D: Device>(
    device: &D,
    tokens: usize,
    copy_rate: Option<f64>,
) -> Result<(), Box<dyn Error>> {
    let layout = RowLayout::new(Storage::Bf16, DIM, DIM, LOG2_PAGE)?;
    let heads: Vec<Pages<D>> =
        (0..KV_HEADS).map(|_| rows(device, layout, tokens)).collect::<Result<_, _>>()?;
    let queries = Array::new(device, &noise(KV_HEADS * GROUP * DIM))?;
    let (attend, combine) = (Attend::new(device, layout, GROUP)?, Combine::new(device)?);
    println!("{tokens} tokens, {KV_HEADS} KV heads, {GROUP} query heads each, {DIM} of bf16");
    println!("share of rows          MB         us        TB/s  of a copy   times dense");
    let mut dense = None;
    for share in [1.0, 0.1, 0.05] {
        let lists = lists(device, tokens, share)?;
        let step = || {
            let records = attend.run(&heads.iter().collect::<Vec<_>>(), &lists, &queries, None)?;
            combine.run(&records, &lists)
        };
        let seconds = time(|| step()?.read().map(drop), || step().map(drop))?;
        let bytes = (lists.total() * layout.row_bytes()) as f64;
        let rate = bytes / seconds;
        let of_copy = copy_rate.map_or(String::new(), |copy| format!("{:.2}", rate / copy));
        let dense = *dense.get_or_insert(seconds) / seconds;
        println!(
            "{share:>13} {:>11.1} {:>10.1} {:>11.3} {of_copy:>10} {dense:>13.2}",
            bytes / 1e6,
            seconds * 1e6,
            rate / 1e12
        );
    }
    Ok(())
}

/// Rows of small numbers.
fn rows<D: Device>(
    device: &D,
    layout: RowLayout,
    tokens: usize,
) -> Result<Pages<D>, vattention_core::Error> {
    let numbers = noise(layout.page_bytes() / 2);
    // The upper half of an f32 is a bf16.
    let bytes: Vec<u8> =
        numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
    let page = |_| Array::new(device, &bytes).map(Arc::new);
    let pages = (0..tokens.div_ceil(1 << LOG2_PAGE)).map(page).collect::<Result<_, _>>()?;
    Pages::new(device, layout, pages)
}

/// Numbers between −1 and 1, the same ones each time.
fn noise(count: usize) -> Vec<f32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let states = std::iter::successors(Some(1_u32), next);
    states.map(|state| (state >> 8) as f32 / (1 << 23) as f32 - 1.0).take(count).collect()
}

/// All tokens of each KV head, or a share of them at even distances, those of each head others.
fn lists<D: Device>(
    device: &D,
    tokens: usize,
    share: f64,
) -> Result<Lists<D>, vattention_core::Error> {
    if share == 1.0 {
        return Lists::beginnings(device, &[tokens; KV_HEADS]);
    }
    let count = (tokens as f64 * share) as usize;
    let token = |head: usize, i: usize| (((i as f64 + head as f64 / 9.0) / share) as usize) as u32;
    let indices: Vec<u32> =
        (0..KV_HEADS).flat_map(|head| (0..count).map(move |i| token(head, i))).collect();
    let indptr: Vec<usize> = (0..=KV_HEADS).map(|head| head * count).collect();
    Lists::new(device, &indptr, &indices, None)
}

/// Seconds of one step, on average over half a second at least; `last` waits for all before it.
fn time<E>(
    mut last: impl FnMut() -> Result<(), E>,
    mut step: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    last()?;
    let mut count = 1;
    loop {
        let begin = Instant::now();
        (1..count).try_for_each(|_| step())?;
        last()?;
        let took = begin.elapsed();
        if took > Duration::from_millis(500) {
            return Ok(took.as_secs_f64() / f64::from(count));
        }
        count *= 2;
    }
}

/// Bytes read and written in a second, when the device copies a gigabyte within its memory.
fn copy_rate() -> Result<f64, Box<dyn Error>> {
    let stream = CudaContext::new(0)?.default_stream();
    let from = stream.alloc_zeros::<u8>(1 << 30)?;
    let mut to = stream.alloc_zeros::<u8>(1 << 30)?;
    let copies = 20;
    stream.memcpy_dtod(&from, &mut to)?;
    stream.synchronize()?;
    let begin = Instant::now();
    for _ in 0..copies {
        stream.memcpy_dtod(&from, &mut to)?;
    }
    stream.synchronize()?;
    Ok(f64::from(copies * 2) * (1_u64 << 30) as f64 / begin.elapsed().as_secs_f64())
}
