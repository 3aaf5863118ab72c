//! How fast a GPU reads rows and selects among them, by the backend's own kernels.
//!
//!     gather                                on the first GPU, the shapes of the goals in docs/gpu.md
//!     gather --shapes 1x32768,8x131072      8 sequences of 131072 tokens, and so on
//!     gather --emulated                     on the host, a few tokens: shows that it runs
//!
//! Eight KV heads of 128 elements in bf16, four query heads each; all sequences in one launch.
//!
//! | what     |                                                                                |
//! |----------|--------------------------------------------------------------------------------|
//! | `dense`  | attention over all rows                                                        |
//! | `gather` | attention over lists of one row in ten, and one in twenty, for each KV head    |
//! | `score`  | agreeing bits of all codes of 32 bits, one for each token and query head       |
//! | `select` | the same, the best twentieth for each query head, and lists of them            |
//!
//! Kernels are recorded once and replayed, so that the host's starts do not count. Between replays
//! 256 MB of other memory are written, which leaves nothing in the caches, and a time is the median of
//! many, by the device's own clock. A rate counts the bytes of the rows or codes that are read; it
//! stands beside that of a copy on the device, read and written bytes counted. An emulation has no
//! caches to be emptied, and its times mean nothing.

mod clock;
mod data;
mod kernels;
mod report;
mod shape;

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use vattention_cuda::launch::{Lists, Pages};
use vattention_cuda::{Device, Driver};
use vattention_cuda_emulator::Emulator;

use clock::{Clock, Flush};
use kernels::{Coded, Ready};
use report::{GatherReport, GatherTimes};
use shape::Shape;

/// Goals are set for these.
const SHAPES: &str = "1x32768,1x131072,1x524288,8x131072,32x32768";

/// For an emulation.
const TINY: &str = "1x600";

/// Written between replays, in bytes: several times the largest cache of a GPU.
const FLUSHED: usize = 1 << 28;

/// One row in so many is read, and taken.
const STEPS: [usize; 2] = [10, 20];

/// How fast a GPU reads rows and selects among them.
#[derive(Debug, Parser)]
struct Arguments {
    /// Sequences and their tokens, between commas
    #[arg(long, value_delimiter = ',', value_name = "BATCHxTOKENS", default_value = SHAPES,
          default_value_if("emulated", "true", TINY))]
    shapes: Vec<Shape>,
    /// Time to measure each line, in seconds, about
    #[arg(long, default_value_t = 0.5, value_parser = seconds, allow_hyphen_values = true)]
    seconds: f64,
    /// Write all that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run on the host, where times mean nothing
    #[arg(long)]
    emulated: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|seconds| (0.0..=60.0).contains(seconds));
    number.ok_or_else(|| "expected 0 to 60 seconds".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = match arguments.json.as_deref().map(create).transpose() {
        Ok(json) => json,
        Err(error) => return refuse(&*error, 2),
    };
    match run(&arguments, json) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&*error, 1),
    }
}

fn create(path: &Path) -> Result<File, Box<dyn Error>> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn refuse(error: &dyn Error, code: u8) -> ExitCode {
    eprintln!("gather: {error}");
    ExitCode::from(code)
}

fn run(arguments: &Arguments, json: Option<File>) -> Result<(), Box<dyn Error>> {
    let report = if arguments.emulated {
        let emulator = Emulator::new()?;
        let report = GatherReport::new(emulator.summary(), true, None);
        measure_all(&emulator, &Clock::Host, report, arguments)?
    } else {
        let driver = Driver::open()?;
        let clock = Clock::of_gpu()?;
        let report = GatherReport::new(driver.summary(), false, clock.copy_rate()?);
        measure_all(&driver, &clock, report, arguments)?
    };
    if let Some(json) = json {
        serde_json::to_writer_pretty(json, &report)?;
    }
    Ok(())
}

/// All shapes that there is memory for.
fn measure_all<D: Device>(
    device: &D,
    clock: &Clock,
    mut report: GatherReport,
    arguments: &Arguments,
) -> Result<GatherReport, Box<dyn Error>> {
    let flush = Flush::new(device, if report.emulated { 1 << 10 } else { FLUSHED })?;
    report.print_head();
    for &shape in &arguments.shapes {
        let (needed, free) = (bytes_needed(shape)?, clock.free_bytes()?);
        if let Some(free) = free.filter(|&free| free < needed) {
            let gigabytes = |bytes| bytes as f64 / 1e9;
            let (needed, free) = (gigabytes(needed), gigabytes(free));
            report.leave_out(shape, format!("it needs {needed:.1} GB, {free:.1} GB are free"));
            continue;
        }
        let limit = arguments.seconds;
        let mut one = Measuring { device, clock, flush: &flush, shape, limit, report: &mut report };
        if let Err(error) = one.all() {
            match error.downcast_ref() {
                Some(vattention_core::Error::Memory { .. }) => {
                    report.leave_out(shape, error.to_string());
                }
                _ => return Err(error),
            }
        }
    }
    Ok(report)
}

/// About the most memory that a shape takes at a time, in bytes.
fn bytes_needed(shape: Shape) -> vattention_core::Result<usize> {
    let rows = shape.lists() * shape.tokens * kernels::layout()?.row_bytes();
    Ok(rows + rows / 8 + (1 << 29))
}

/// One shape.
struct Measuring<'a, D: Device> {
    device: &'a D,
    clock: &'a Clock,
    flush: &'a Flush<D>,
    shape: Shape,
    /// In seconds, for each line.
    limit: f64,
    report: &'a mut GatherReport,
}

impl<D: Device> Measuring<'_, D> {
    fn all(&mut self) -> Result<(), Box<dyn Error>> {
        self.attention()?;
        self.selection()
    }

    fn attention(&mut self) -> Result<(), Box<dyn Error>> {
        let heads = data::rows(self.device, kernels::layout()?, self.shape)?;
        let all = data::all(self.device, self.shape)?;
        self.attend("dense", &heads, &all, (1.0, None))?;
        for step in STEPS {
            let chosen = data::one_in(self.device, self.shape, step)?;
            let named = (1.0 / step as f64, Some(chosen.sum));
            self.attend("gather", &heads, &chosen.lists, named)?;
        }
        Ok(())
    }

    /// Lists of a share of the tokens, with the sum of all of them.
    fn attend(
        &mut self,
        what: &'static str,
        heads: &[Pages<D>],
        lists: &Lists<D>,
        (share, list_sum): (f64, Option<u64>),
    ) -> Result<(), Box<dyn Error>> {
        let bytes = lists.total() * kernels::layout()?.row_bytes();
        let ready = kernels::attend(self.device, heads, lists)?;
        self.time(ready, what, share, bytes, list_sum)
    }

    fn selection(&mut self) -> Result<(), Box<dyn Error>> {
        let coded = Coded::new(self.device, self.shape)?;
        self.time(coded.score()?, "score", 1.0, coded.bytes(), None)?;
        let step = STEPS[1];
        self.time(coded.select(step)?, "select", 1.0 / step as f64, coded.bytes(), None)
    }

    fn time(
        &mut self,
        ready: Ready<'_, D>,
        what: &'static str,
        share: f64,
        bytes: usize,
        list_sum: Option<u64>,
    ) -> Result<(), Box<dyn Error>> {
        let Ready { work, check } = ready;
        let (seconds, times) = self.clock.median(&work.record()?, self.flush, self.limit)?;
        let shape = self.shape;
        if !check()? {
            return Err(format!("{what} at {shape} left what cannot be right").into());
        }
        self.report.add(GatherTimes { what, shape, share, bytes, seconds, times, list_sum });
        Ok(())
    }
}
