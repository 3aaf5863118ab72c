//! What is told of a generation, in words and as JSON.

use serde::Serialize;
use vattention_llm::{Generation, Stop};

use super::request::TokenCounts;
use super::steps::{DenseComparison, OutsideCount, StepRow, StepsDocument};
use super::tally::{LayerRow, StepTimes};
use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// All that was measured.
#[derive(Serialize)]
pub(super) struct GenerationReport {
    pub(super) model: String,
    pub(super) pipeline: String,
    pub(super) file: String,
    pub(super) backend: String,
    pub(super) setup: &'static str,
    pub(super) answer: String,
    pub(super) stop: &'static str,
    pub(super) tokens: TokenCounts,
    /// Of reading the dense part.
    pub(super) prefill_seconds: f64,
    /// Share of the causal pairs that this read.
    pub(super) prefill_density: Option<f64>,
    pub(super) steps: Option<StepTimes>,
    pub(super) memory: MemoryReport,
    /// The mean over layers and steps by the pipeline.
    pub(super) density: Option<f64>,
    pub(super) layers: Vec<LayerRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) beside: Option<DenseComparison>,
    /// With `--steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bars: Option<OutsideCount>,
}

/// In bytes.
#[derive(Serialize)]
pub(super) struct MemoryReport {
    pub(super) weights: u64,
    pub(super) keys_values: u64,
    pub(super) index: u64,
}

/// Why a generation ended.
pub(super) fn stop(generation: &Generation) -> &'static str {
    match generation.stop {
        Stop::End(_) => "end",
        Stop::Length => "length",
        Stop::Asked => "interrupted",
    }
}

impl GenerationReport {
    /// Document of `--steps`.
    pub(super) fn with_steps(&self, steps: Vec<StepRow>) -> StepsDocument {
        StepsDocument {
            model: self.model.clone(),
            pipeline: self.pipeline.clone(),
            setup: self.setup.into(),
            beside: self.beside,
            steps,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.layers.is_empty() {
            parts.push(format!("{}\nAll are means over the steps.", self.table()));
        }
        let mut lines =
            vec![self.setup_line(), self.token_line(), self.time_line(), self.memory_line()];
        lines
            .extend(self.beside.as_ref().map(|beside| format!("beside dense attention: {beside}")));
        lines.extend(
            self.bars.as_ref().map(|bars| format!("errors larger than their bar: {bars} rows")),
        );
        parts.push(lines.join("\n"));
        parts.join("\n\n")
    }

    fn table(&self) -> String {
        let columns = [
            Column::<LayerRow>::new("layer", "", |row| row.layer.to_string()),
            Column::<LayerRow>::new(
                "density",
                "share of the visible tokens that a KV head's query heads read together",
                |row| percent(row.density),
            ),
            Column::<LayerRow>::new("sampled", "tokens drawn by chance for a query head", |row| {
                format!("{:.0}", row.sampled)
            }),
            Column::<LayerRow>::new(
                "held",
                "share of the rows whose certificate says that the promise held",
                |row| or_dash(row.held.map(percent)),
            ),
            Column::<LayerRow>::new(
                "bar",
                "relative error that a row says is exceeded with probability delta at most; 0 where \
                 all is read",
                |row| or_dash(row.bar.map(short)),
            ),
        ];
        table::show(&columns, &self.layers)
    }

    /// How the prompt was read.
    fn reading(&self) -> String {
        match self.prefill_density {
            Some(density) if density < 1.0 => {
                format!("sparsely ({} of all pairs)", percent(density))
            }
            _ => "densely".into(),
        }
    }

    fn setup_line(&self) -> String {
        let (dense, sparse) = match self.setup {
            "a" => ("context and question", "answer"),
            _ => ("context", "question and answer"),
        };
        let Self { setup, pipeline, .. } = self;
        let reading = self.reading();
        format!("setup {setup}: {dense} read {reading}; {sparse} by the pipeline `{pipeline}`")
    }

    fn token_line(&self) -> String {
        let TokenCounts { context, question, answer } = self.tokens;
        let why = match self.stop {
            "end" => "the model ended the text",
            "length" => "as many as --tokens allows",
            _ => "interrupted",
        };
        format!("tokens: {context} of context, {question} of question, {answer} of answer ({why})")
    }

    fn time_line(&self) -> String {
        let prefill = format!("time: {:.2} s to read {}", self.prefill_seconds, self.reading());
        let Some(steps) = &self.steps else { return format!("{prefill}; no step by the pipeline") };
        let (milliseconds, count) = (1000.0 * steps.median_seconds, steps.count);
        let attention = percent(steps.attention_share);
        let parts = match (steps.select_share, steps.sample_share, steps.attend_share) {
            (Some(select), Some(sample), Some(attend)) => {
                let [select, sample, attend] = [select, sample, attend].map(percent);
                format!(" (select {select}, sample {sample}, attend {attend})")
            }
            _ => String::new(),
        };
        format!(
            "{prefill}; {milliseconds:.2} ms a token by the pipeline, the median of {count} steps, \
             {attention} of it in attention{parts}"
        )
    }

    fn memory_line(&self) -> String {
        let MemoryReport { weights, keys_values, index } = self.memory;
        let [weights, rows, index] = [weights, keys_values, index].map(size);
        format!(
            "memory: {weights} of weights, {rows} of keys and values, {index} of selectors' indexes"
        )
    }
}

/// Bytes in the largest unit of which there is one.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|&(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_fitting_units() {
        let sizes = [0, 1023, 1024, 1536 << 10, 3 << 30].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.0 GiB"]);
    }
}
