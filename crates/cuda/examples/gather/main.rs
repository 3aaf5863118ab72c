//! Measures how fast a GPU reads rows and selects among them, with the backend's own kernels.
//!
//!     gather                              on the first GPU, with the shapes of docs/notes/goals.md
//!     gather --shapes 1x32768,8x131072    8 sequences of 131072 tokens, and so on
//!     gather --emulated                   on the host, with few tokens, to show that it runs
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
//! Kernels are recorded once and replayed, so that the host's launches do not count. Between
//! replays 256 MB of other memory are written, which evicts everything from the caches. A time is
//! the median of many, by the device's own clock. A rate counts the bytes of the rows or codes that
//! are read; the table compares it with the rate of a copy on the device, where read and written
//! bytes count. An emulation has no caches, and its times mean nothing.

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
use kernels::{CheckedWork, SelectionInputs};
use report::{GatherReport, GatherTimes};
use shape::BatchShape;

/// Shapes of the goals.
const SHAPES: &str = "1x32768,1x131072,1x524288,8x131072,32x32768";

/// Shape for an emulation.
const TINY: &str = "1x600";

/// Bytes written between replays, several times the largest cache of a GPU.
const FLUSHED: usize = 1 << 28;

/// Inverse shares of the rows that are read, or taken.
const STEPS: [usize; 2] = [10, 20];

/// Measure how fast a GPU reads rows and selects among them
#[derive(Debug, Parser)]
struct Arguments {
    /// Numbers of sequences and of their tokens, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "BATCHxTOKENS", default_value = SHAPES,
          default_value_if("emulated", "true", TINY))]
    shapes: Vec<BatchShape>,
    /// Approximate time to measure each line, in seconds
    #[arg(long, default_value_t = 0.5, value_parser = seconds, allow_hyphen_values = true)]
    seconds: f64,
    /// Write all results to a file
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
        let clock = Clock::for_gpu()?;
        let report = GatherReport::new(driver.summary(), false, clock.copy_rate()?);
        measure_all(&driver, &clock, report, arguments)?
    };
    if let Some(json) = json {
        serde_json::to_writer_pretty(json, &report)?;
    }
    Ok(())
}

/// Measures all shapes for which there is memory.
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
        let mut measurement =
            Measurement { device, clock, flush: &flush, shape, limit, report: &mut report };
        if let Err(error) = measurement.run() {
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

/// Approximate peak of the memory that a shape takes, in bytes.
fn bytes_needed(shape: BatchShape) -> vattention_core::Result<usize> {
    let rows = shape.lists() * shape.tokens * kernels::layout()?.row_bytes();
    Ok(rows + rows / 8 + (1 << 29))
}

/// Measurement of one shape.
struct Measurement<'a, D: Device> {
    device: &'a D,
    clock: &'a Clock,
    flush: &'a Flush<D>,
    shape: BatchShape,
    /// Time for each line, in seconds.
    limit: f64,
    report: &'a mut GatherReport,
}

impl<D: Device> Measurement<'_, D> {
    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        self.attention()?;
        self.selection()
    }

    fn attention(&mut self) -> Result<(), Box<dyn Error>> {
        let heads = data::rows(self.device, kernels::layout()?, self.shape)?;
        let all = data::all(self.device, self.shape)?;
        self.attend("dense", &heads, &all, (1.0, None))?;
        for step in STEPS {
            let chosen = data::one_in(self.device, self.shape, step)?;
            let description = (1.0 / step as f64, Some(chosen.sum));
            self.attend("gather", &heads, &chosen.lists, description)?;
        }
        Ok(())
    }

    /// Measures attention over lists with a share of the tokens, whose sum is `list_sum`.
    fn attend(
        &mut self,
        what: &'static str,
        heads: &[Pages<D>],
        lists: &Lists<D>,
        (share, list_sum): (f64, Option<u64>),
    ) -> Result<(), Box<dyn Error>> {
        let bytes = lists.total() * kernels::layout()?.row_bytes();
        let work = kernels::attend(self.device, heads, lists)?;
        self.time(work, what, share, bytes, list_sum)
    }

    fn selection(&mut self) -> Result<(), Box<dyn Error>> {
        let inputs = SelectionInputs::new(self.device, self.shape)?;
        self.time(inputs.score()?, "score", 1.0, inputs.bytes(), None)?;
        let step = STEPS[1];
        self.time(inputs.select(step)?, "select", 1.0 / step as f64, inputs.bytes(), None)
    }

    fn time(
        &mut self,
        work: CheckedWork<'_, D>,
        what: &'static str,
        share: f64,
        bytes: usize,
        list_sum: Option<u64>,
    ) -> Result<(), Box<dyn Error>> {
        let CheckedWork { work, check } = work;
        let (seconds, times) = self.clock.median(&work.record()?, self.flush, self.limit)?;
        let shape = self.shape;
        if !check()? {
            return Err(format!("{what} at {shape}: the results are implausible").into());
        }
        self.report.add(GatherTimes { what, shape, share, bytes, seconds, times, list_sum });
        Ok(())
    }
}
