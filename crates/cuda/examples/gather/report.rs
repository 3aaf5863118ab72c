//! Results: lines for people, and a JSON document.

use serde::Serialize;

use super::shape::{BatchShape, DIM, GROUP, KV_HEADS};

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct GatherReport {
    pub(crate) device: String,
    /// True for an emulation, whose times mean nothing.
    pub(crate) emulated: bool,
    /// Bytes read and written per second by a copy.
    pub(crate) copy_rate: Option<f64>,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    pub(crate) results: Vec<GatherTimes>,
    /// Shapes that could not be measured, with the reason.
    pub(crate) left_out: Vec<LeftOut>,
}

/// Time of some kernels at a shape.
#[derive(Debug, Serialize)]
pub(crate) struct GatherTimes {
    pub(crate) what: &'static str,
    #[serde(flatten)]
    pub(crate) shape: BatchShape,
    /// Share of the tokens that each KV head reads, or each query head takes.
    pub(crate) share: f64,
    /// Bytes of the rows or of the codes that are read.
    pub(crate) bytes: usize,
    /// Median time.
    pub(crate) seconds: f64,
    /// Number of replays.
    pub(crate) times: usize,
    /// Sum of the tokens in all lists.
    pub(crate) list_sum: Option<u64>,
}

/// A shape that was not measured.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOut {
    #[serde(flatten)]
    pub(crate) shape: BatchShape,
    pub(crate) reason: String,
}

impl GatherReport {
    pub(crate) fn new(device: String, emulated: bool, copy_rate: Option<f64>) -> Self {
        let (kv_heads, group, head_dim) = (KV_HEADS, GROUP, DIM);
        let (results, left_out) = (Vec::new(), Vec::new());
        Self { device, emulated, copy_rate, kv_heads, group, head_dim, results, left_out }
    }

    /// Prints the device and the header of the table.
    pub(crate) fn print_head(&self) {
        match self.copy_rate {
            Some(rate) => println!("{}, which copies {:.2} TB/s", self.device, rate / 1e12),
            None => println!("{}", self.device),
        }
        println!("{KV_HEADS} KV heads, {GROUP} query heads each, {DIM} of bf16");
        println!(
            "{:>10} {:>7} {:>6} {:>11} {:>10} {:>7} {:>10}",
            "shape", "what", "share", "MB", "us", "TB/s", "of a copy"
        );
    }

    /// Adds a line, and prints it.
    pub(crate) fn add(&mut self, measured: GatherTimes) {
        let GatherTimes { what, shape, share, bytes, seconds, .. } = measured;
        let rate = bytes as f64 / seconds;
        let of_copy = self.copy_rate.map_or(String::new(), |copy| format!("{:.2}", rate / copy));
        println!(
            "{:>10} {what:>7} {share:>6.2} {:>11.1} {:>10.1} {:>7.3} {of_copy:>10}",
            shape.to_string(),
            bytes as f64 / 1e6,
            seconds * 1e6,
            rate / 1e12
        );
        self.results.push(measured);
    }

    /// Records and prints the reason why a shape was not measured.
    pub(crate) fn leave_out(&mut self, shape: BatchShape, reason: String) {
        println!("{:>10} left out: {reason}", shape.to_string());
        self.left_out.push(LeftOut { shape, reason });
    }
}
