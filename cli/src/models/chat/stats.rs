//! Text of `/stats`.

use super::session::ChatSession;
use crate::models::generate::MemoryReport;
use crate::numbers::{percent, short};

impl ChatSession<'_> {
    /// Memory of the model and the conversation.
    pub(super) fn memory(&self) -> MemoryReport {
        let session = &self.sequence.session;
        MemoryReport {
            weights: self.model.checkpoint.weight_bytes,
            keys_values: self.model.row_bytes(session.len()),
            index: session.index_bytes() as u64,
        }
    }

    /// Describes the conversation, and the answers with the current pipeline.
    pub(super) fn describe(&self) -> String {
        let tally = &self.tally;
        let dash = || "-".to_owned();
        let promise = match tally.promise() {
            Some(promise) => {
                let held = percent(promise.held as f64 / promise.rows as f64);
                let bar = tally.largest_bar().map_or_else(dash, short);
                format!("{held} of {} rows held; largest error bar {bar}", promise.rows)
            }
            None if tally.density().is_none() => dash(),
            None => "none".into(),
        };
        let speed = tally.steps_per_second();
        let drafts = (self.model.options.rewindable > 0).then(|| tally.drafts().line());
        let lines = [
            format!("pipeline: {}", self.entry.pipeline.name),
            format!("tokens: {} of at most {}", self.sequence.len(), self.model.limit),
            format!(
                "tokens per second: {}",
                speed.map_or_else(dash, |speed| format!("{speed:.2}"))
            ),
            format!("density: {}", tally.density().map_or_else(dash, percent)),
            format!("promise: {promise}"),
            self.memory().line(),
        ];
        lines.into_iter().chain(drafts).collect::<Vec<_>>().join("\n")
    }
}
