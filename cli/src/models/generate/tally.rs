//! Totals over the steps with the pipeline.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use vattention::Timings;
use vattention_llm::{DraftCounts, LayerReport, LayerWindow, Session};

use super::steps::{StepLog, radii};

/// Totals over all steps so far.
pub(in crate::models) struct StepTally<'r> {
    /// Start of the work on the next token.
    begin: Instant,
    /// Length of the sequence after the last step that was added.
    tokens: usize,
    /// Seconds of each step.
    seconds: Vec<f64>,
    /// Index of the first step of the last pass in `seconds`.
    pass: usize,
    drafts: DraftCounts,
    /// Time of all steps in attention.
    attention: Duration,
    timings: Option<Timings>,
    layers: Vec<LayerSums>,
    /// Log of single steps, if `--steps` is given.
    record: Option<StepLog<'r>>,
}

/// Origin of the token of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::models) enum StepOrigin {
    /// The token was known when its pass began.
    Chosen,
    /// The pass of an earlier token had computed the step, because the token was a draft.
    Draft,
}

/// Sums of one layer over steps.
#[derive(Clone, Copy, Default)]
struct LayerSums {
    /// Window of a sliding layer.
    window: Option<LayerWindow>,
    density: f64,
    sampled: f64,
    /// Rows with a promise.
    promised: usize,
    /// Rows with a promise whose certificate is `held`.
    held: usize,
    /// Sum of the radii of finite error bars.
    radii: f64,
    /// Largest of these radii.
    largest: f64,
    /// Number of finite error bars.
    barred: usize,
}

impl<'r> StepTally<'r> {
    pub(in crate::models) fn new(record: Option<StepLog<'r>>) -> Self {
        Self {
            begin: Instant::now(),
            tokens: 0,
            seconds: Vec::new(),
            pass: 0,
            drafts: DraftCounts::default(),
            attention: Duration::ZERO,
            timings: None,
            layers: Vec::new(),
            record,
        }
    }

    /// Starts timing the next step.
    pub(in crate::models) fn start_step(&mut self) {
        self.begin = Instant::now();
    }

    /// Starts timing the next step; the session's steps so far are not counted.
    pub(in crate::models) fn skip_steps(&mut self, session: &Session<'_>) {
        self.tokens = session.len();
        self.start_step();
    }

    /// Adds the session's last step, unless there was no step with the pipeline or it was already
    /// added. The time of a pass is divided equally among the steps that it computed.
    pub(in crate::models) fn add_step(&mut self, session: &Session<'_>, origin: StepOrigin) {
        if session.reports().is_empty() || session.len() == self.tokens {
            return;
        }
        if origin == StepOrigin::Chosen {
            self.pass = self.seconds.len();
        }
        self.seconds.push(self.begin.elapsed().as_secs_f64());
        let pass = &mut self.seconds[self.pass..];
        let mean = pass.iter().sum::<f64>() / pass.len() as f64;
        pass.fill(mean);
        self.tokens = session.len();
        self.layers.resize(session.reports().len(), LayerSums::default());
        for (layer, report) in self.layers.iter_mut().zip(session.reports()) {
            layer.add(report);
            self.attention += report.time;
            if let Some(timings) = report.timings {
                *self.timings.get_or_insert_default() += timings;
            }
        }
        if let Some(record) = &mut self.record {
            record.add(session);
        }
        self.start_step();
    }

    /// Adds the drafts of an answer.
    pub(in crate::models) fn add_drafts(&mut self, counts: DraftCounts) {
        self.drafts.drafted += counts.drafted;
        self.drafts.accepted += counts.accepted;
    }

    /// Returns the numbers of drafts.
    pub(in crate::models) fn drafts(&self) -> DraftReport {
        let DraftCounts { drafted, accepted } = self.drafts;
        DraftReport { drafted, accepted }
    }

    /// Takes the log of single steps, if `--steps` is given.
    pub(super) fn take_record(&mut self) -> Option<StepLog<'r>> {
        self.record.take()
    }

    /// Returns times of the steps; `None` if there were no steps.
    pub(in crate::models) fn steps(&self) -> Option<StepTimes> {
        let all: f64 = self.seconds.iter().sum();
        let share = |part: fn(&Timings) -> Duration| {
            let timings = self.timings.as_ref()?;
            let all = (timings.select + timings.sample + timings.attend).as_secs_f64();
            (all > 0.0).then(|| part(timings).as_secs_f64() / all)
        };
        Some(StepTimes {
            count: self.seconds.len(),
            median_seconds: median(&self.seconds)?,
            attention_share: self.attention.as_secs_f64() / all,
            select_share: share(|timings| timings.select),
            sample_share: share(|timings| timings.sample),
            attend_share: share(|timings| timings.attend),
        })
    }

    /// Returns the mean density over full layers and steps; 1 if all layers slide.
    pub(in crate::models) fn density(&self) -> Option<f64> {
        let layers = self.layers();
        let full = || layers.iter().filter(|layer| layer.window.is_none());
        let sum: f64 = full().map(|layer| layer.density).sum();
        match full().count() {
            0 => (!layers.is_empty()).then_some(1.0),
            count => Some(sum / count as f64),
        }
    }

    /// Returns the number of steps per second; `None` if there were no steps.
    pub(in crate::models) fn steps_per_second(&self) -> Option<f64> {
        let all: f64 = self.seconds.iter().sum();
        (all > 0.0).then(|| self.seconds.len() as f64 / all)
    }

    /// Counts the rows that kept their promise; `None` without a promise.
    pub(in crate::models) fn promise(&self) -> Option<PromiseCount> {
        let rows = self.layers.iter().map(|layer| layer.promised).sum();
        let held = self.layers.iter().map(|layer| layer.held).sum();
        (rows > 0).then_some(PromiseCount { rows, held })
    }

    /// Returns the largest radius of the finite error bars; `None` if there are none.
    pub(in crate::models) fn largest_bar(&self) -> Option<f64> {
        let barred = self.layers.iter().filter(|layer| layer.barred > 0);
        barred.map(|layer| layer.largest).reduce(f64::max)
    }

    /// Returns the means of each layer over steps; empty if there were no steps.
    pub(in crate::models) fn layers(&self) -> Vec<LayerRow> {
        let steps = self.seconds.len() as f64;
        let row = |(number, layer): (usize, &LayerSums)| LayerRow {
            layer: number,
            window: layer.window,
            density: layer.density / steps,
            sampled: layer.sampled / steps,
            held: (layer.promised > 0).then(|| layer.held as f64 / layer.promised as f64),
            bar: (layer.barred > 0).then(|| layer.radii / layer.barred as f64),
        };
        self.layers.iter().enumerate().map(row).collect()
    }
}

impl LayerSums {
    fn add(&mut self, report: &LayerReport) {
        self.window = report.window;
        self.density += report.density();
        self.sampled += report.sampled();
        for row in report.rows.iter().filter(|row| row.certificate.promise.is_some()) {
            self.promised += 1;
            self.held += usize::from(row.certificate.held);
        }
        for radius in radii(report) {
            self.radii += radius;
            self.largest = self.largest.max(radius);
            self.barred += 1;
        }
    }
}

/// Numbers of rows with a promise, and of rows that kept it, over all steps and layers.
#[derive(Clone, Copy)]
pub(in crate::models) struct PromiseCount {
    /// Rows with a promise.
    pub(in crate::models) rows: usize,
    /// Rows whose certificate is `held`.
    pub(in crate::models) held: usize,
}

/// Returns the median: the middle number, or the mean of the two in the middle.
fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some(f64::midpoint(sorted[low], sorted[high]))
}

/// Times of the steps with the pipeline.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct StepTimes {
    /// Number of steps.
    pub(super) count: usize,
    /// Median time of a step.
    pub(super) median_seconds: f64,
    /// Share of attention in the time of all steps.
    pub(super) attention_share: f64,
    /// Share of selectors in the time that threads spent on KV heads.
    pub(super) select_share: Option<f64>,
    /// Share of samplers and checks in this time.
    pub(super) sample_share: Option<f64>,
    /// Share of products with keys and values in this time.
    pub(super) attend_share: Option<f64>,
}

/// Numbers of drafts, which were computed before they were chosen.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct DraftReport {
    /// Tokens that were drafted.
    pub(super) drafted: usize,
    /// Drafted tokens that became tokens of the answer.
    pub(super) accepted: usize,
}

impl DraftReport {
    /// Describes the numbers in words.
    pub(in crate::models) fn line(&self) -> String {
        format!("drafts: {} of {} accepted", self.accepted, self.drafted)
    }
}

/// Means of one layer over steps.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct LayerRow {
    /// Layer.
    pub(super) layer: usize,
    /// Window of a layer that slides: it reads the tokens of the window, whatever the pipeline.
    /// `None` for a layer that follows the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window: Option<LayerWindow>,
    /// Share of the visible tokens, or of those within the window, that a KV head's query heads
    /// read together.
    pub(super) density: f64,
    /// Sampled tokens per query head.
    pub(super) sampled: f64,
    /// Share of the rows whose certificate is `held`; `None` without a promise.
    pub(super) held: Option<f64>,
    /// Mean radius of the error bars; `None` if there are none.
    pub(super) bar: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
