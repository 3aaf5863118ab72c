//! `GET /metrics`, in the text format of Prometheus.

use std::fmt::Write;

use crate::engine::{EngineMetrics, PipelineMetrics};
use crate::state::App;

/// Content type of the response.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes all metrics.
pub(crate) fn write_metrics(app: &App) -> String {
    let mut page = MetricsPage::default();
    page.begin("requests_total", "counter", "Answered HTTP requests by path and status.");
    for ((path, status), count) in app.counts.list() {
        page.write("requests_total", &format!("{{path=\"{path}\",status=\"{status}\"}}"), count);
    }
    let engine = app.served.engine.metrics();
    write_engine(&mut page, &engine);
    write_pipelines(&mut page, &app.served.pipelines, &engine.pipelines);
    page.text
}

fn write_engine(page: &mut MetricsPage, engine: &EngineMetrics) {
    let counters = [
        ("prompt_tokens_total", "Tokens of prompts that were read.", engine.prompt_tokens),
        ("cached_tokens_total", "Tokens of prompts from the prefix cache.", engine.cached_tokens),
        ("generated_tokens_total", "Generated tokens.", engine.generated_tokens),
        ("cancelled_total", "Texts whose clients disconnected.", engine.cancelled),
    ];
    for (name, help, value) in counters {
        page.begin(name, "counter", help);
        page.write(name, "", value);
    }
    let gauges = [
        ("queued", "Texts that wait for a place.", engine.queued as u64),
        ("running", "Texts that are read or generated.", engine.running as u64),
        ("cache_bytes", "Bytes of the prefix cache.", engine.cache_bytes),
        ("cache_blocks", "Blocks of the prefix cache.", engine.cache_blocks as u64),
        ("reserved_bytes", "Bytes reserved for running texts.", engine.reserved_bytes),
    ];
    for (name, help, value) in gauges {
        page.begin(name, "gauge", help);
        page.write(name, "", value);
    }
}

/// Function that returns a counter of a pipeline, or a ratio of counters.
type PipelineValue = fn(&PipelineMetrics) -> Option<f64>;

/// Metrics of each pipeline: name, type, description and value.
const OF_PIPELINES: [(&str, &str, &str, PipelineValue); 9] = [
    ("steps_total", "counter", "Decode steps of texts.", |sums| Some(sums.steps as f64)),
    ("rows_total", "counter", "Query heads of all layers and steps with a promise.", |sums| {
        Some(sums.rows as f64)
    }),
    (
        "held_rows_total",
        "counter",
        "Rows whose certificate states that the promise held.",
        |sums| Some(sums.held_rows as f64),
    ),
    ("barred_rows_total", "counter", "Rows with an error bar.", |sums| {
        Some(sums.barred_rows as f64)
    }),
    ("density_sum", "counter", "Sum of the steps' densities.", |sums| Some(sums.density_sum)),
    ("bar_sum", "counter", "Sum of the rows' error bars.", |sums| Some(sums.bar_sum)),
    ("density", "gauge", "Mean share of the visible tokens that a step reads.", |sums| {
        divide(sums.density_sum, sums.steps)
    }),
    ("held_share", "gauge", "Share of the rows with a promise that kept it.", |sums| {
        divide(sums.held_rows as f64, sums.rows)
    }),
    ("error_bar", "gauge", "Mean error bar of the rows that have one.", |sums| {
        divide(sums.bar_sum, sums.barred_rows)
    }),
];

fn write_pipelines(page: &mut MetricsPage, names: &[String], pipelines: &[PipelineMetrics]) {
    for (name, kind, help, value) in OF_PIPELINES {
        page.begin(name, kind, help);
        for (pipeline, sums) in names.iter().zip(pipelines) {
            if let Some(value) = value(sums) {
                page.write(name, &format!("{{pipeline=\"{pipeline}\"}}"), value);
            }
        }
    }
}

fn divide(sum: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum / count as f64)
}

/// Text of the response while it is written.
#[derive(Default)]
struct MetricsPage {
    text: String,
}

impl MetricsPage {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP vattention_{name} {help}");
        let _ = writeln!(self.text, "# TYPE vattention_{name} {kind}");
    }

    fn write(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "vattention_{name}{labels} {value}");
    }
}
