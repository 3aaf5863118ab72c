//! Report of a generation, in words and as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use vattention_evaluate::Setup;
use vattention_llm::Stop;

use super::request::TokenCounts;
use super::scores::TokenScore;
use super::steps::{DenseComparison, OutsideCount, StepRow, StepsDocument};
use super::tally::{DraftReport, LayerRow, StepTimes};
use crate::models::answering::setup_name;
use crate::numbers::{percent, short};
use crate::table::{self, Column, or_dash};

/// Everything that was measured, as written to JSON.
#[derive(Serialize, JsonSchema)]
pub(crate) struct GenerationReport {
    /// Model, as given.
    pub(in crate::models) model: String,
    /// Name of the pipeline.
    pub(in crate::models) pipeline: String,
    /// Pipeline file, as given.
    pub(in crate::models) file: String,
    /// Name of the backend.
    pub(in crate::models) backend: String,
    #[serde(serialize_with = "serialize_setup")]
    /// Part of the prompt that the pipeline reads.
    pub(in crate::models) setup: Setup,
    /// Generated text.
    pub(in crate::models) answer: String,
    /// End of the generation: `end`, `stop` (a stop string or stop token), `length` or
    /// `interrupted`.
    pub(in crate::models) stop: &'static str,
    /// Log-probabilities of the tokens of the answer; only with `--logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::models) logprobs: Option<Vec<TokenScore>>,
    /// Numbers of tokens.
    pub(in crate::models) tokens: TokenCounts,
    /// Time of the prefill.
    pub(in crate::models) prefill_seconds: f64,
    /// Share of the causal token-key pairs that the prefill read.
    pub(in crate::models) prefill_density: Option<f64>,
    /// Times of the steps with the pipeline; `None` if there were no steps.
    pub(in crate::models) steps: Option<StepTimes>,
    /// Numbers of drafts; only with `--speculate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::models) drafts: Option<DraftReport>,
    /// Memory of the model and the sequence.
    pub(in crate::models) memory: MemoryReport,
    /// Mean density over the layers that follow the pipeline, and over their steps.
    pub(in crate::models) density: Option<f64>,
    /// Means of each layer over steps.
    pub(in crate::models) layers: Vec<LayerRow>,
    /// Comparison with the answer by dense attention, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::models) beside: Option<DenseComparison>,
    /// Number of errors outside of their error bars; only with `--steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::models) bars: Option<OutsideCount>,
}

/// Writes a setup as its letter.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn serialize_setup<S: Serializer>(setup: &Setup, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(setup.name())
}

/// Memory of a generation, in bytes.
#[derive(Serialize, JsonSchema)]
pub(in crate::models) struct MemoryReport {
    /// Weights of the model.
    pub(in crate::models) weights: u64,
    /// Keys and values of the sequence.
    pub(in crate::models) keys_values: u64,
    /// Indexes of the selectors and samplers.
    pub(in crate::models) index: u64,
}

/// Returns the reason for which a generation ended, as a word of the JSON.
pub(in crate::models) fn stop_name(stop: &Stop) -> &'static str {
    match stop {
        Stop::End(_) => "end",
        Stop::StopToken(_) | Stop::StopString(_) => "stop",
        Stop::Length => "length",
        Stop::Interrupted => "interrupted",
    }
}

impl GenerationReport {
    /// Returns true if the model ended the text without an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.stop == "end" && self.answer.trim().is_empty()
    }

    /// Returns the document of `--steps`.
    pub(super) fn with_steps(&self, steps: Vec<StepRow>) -> StepsDocument {
        StepsDocument {
            model: self.model.clone(),
            pipeline: self.pipeline.clone(),
            setup: self.setup.name().into(),
            beside: self.beside,
            steps,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.layers.is_empty() {
            parts.push(format!("{}\nAll numbers are means over the steps.", self.table()));
        }
        let mut lines =
            vec![self.setup_line(), self.token_line(), self.time_line(), self.memory.line()];
        if let Some(drafts) = &self.drafts {
            lines.push(drafts.line());
        }
        if let Some(beside) = &self.beside {
            lines.push(format!("against dense attention: {beside}"));
        }
        if let Some(bars) = &self.bars {
            lines.push(format!("errors larger than their bar: {bars} rows"));
        }
        parts.push(lines.join("\n"));
        parts.join("\n\n")
    }

    fn table(&self) -> String {
        let columns = [
            Column::<LayerRow>::new("layer", "", |row| match row.window {
                None => row.layer.to_string(),
                Some(window) => format!("{} ({window})", row.layer),
            }),
            Column::<LayerRow>::new(
                "density",
                "share of the visible tokens that a KV head's query heads read together",
                |row| percent(row.density),
            ),
            Column::<LayerRow>::new("sampled", "sampled tokens per query head", |row| {
                format!("{:.0}", row.sampled)
            }),
            Column::<LayerRow>::new(
                "held",
                "share of the rows whose certificate states that the promise held",
                |row| or_dash(row.held.map(percent)),
            ),
            Column::<LayerRow>::new(
                "bar",
                "error bar: bound on the relative error at confidence 1 - delta; 0 for rows that \
                 read all tokens",
                |row| or_dash(row.bar.map(short)),
            ),
        ];
        table::show(&columns, &self.layers)
    }

    /// Returns `densely`, or `sparsely` with the density of the prefill.
    fn prefill_mode(&self) -> String {
        match self.prefill_density {
            Some(density) if density < 1.0 => {
                format!("sparsely ({} of all pairs)", percent(density))
            }
            _ => "densely".into(),
        }
    }

    fn setup_line(&self) -> String {
        let (dense, sparse) = match self.setup {
            Setup::A => ("context and question", "answer"),
            Setup::B => ("context", "question and answer"),
        };
        let (setup, mode, pipeline) = (setup_name(self.setup), self.prefill_mode(), &self.pipeline);
        format!("setup {setup}: {dense} read {mode}; {sparse} with the pipeline `{pipeline}`")
    }

    fn token_line(&self) -> String {
        let TokenCounts { context, question, answer } = self.tokens;
        let why = match self.stop {
            "end" => "the model ended the text",
            "stop" => "a --stop or --stop-token",
            "length" => "the maximum of --tokens",
            _ => "interrupted",
        };
        format!("tokens: {context} of context, {question} of question, {answer} of answer ({why})")
    }

    fn time_line(&self) -> String {
        let prefill =
            format!("time: {:.2} s to read {}", self.prefill_seconds, self.prefill_mode());
        let Some(steps) = &self.steps else {
            return format!("{prefill}; no step with the pipeline");
        };
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
            "{prefill}; {milliseconds:.2} ms per token with the pipeline, the median of {count} \
             steps; {attention} of the time in attention{parts}"
        )
    }
}

impl MemoryReport {
    /// Describes the memory in words.
    pub(in crate::models) fn line(&self) -> String {
        let Self { weights, keys_values, index } = *self;
        let [weights, rows, index] = [weights, keys_values, index].map(size);
        format!(
            "memory: {weights} of weights, {rows} of keys and values, {index} of selectors' indexes"
        )
    }
}

/// Formats bytes in the largest unit that is not larger than them.
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
