//! `vattention trace`: what is in a trace, all of it checked.

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use vattention::trace::{Layout, Trace};

use crate::fail::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The trace.
    file: PathBuf,
}

const HEADER: [&str; 10] = [
    "layer",
    "query heads",
    "KV heads",
    "head dim",
    "value dim",
    "tokens",
    "queries",
    "prompt",
    "classes",
    "stored",
];

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let trace = Trace::open(&args.file)?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for (number, layout) in trace.layers() {
        if let Some(layer) = trace.layer(number) {
            layer?;
        }
        table.add_row(cells(number, &layout));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let info = trace.info();
    say(&args.file.display().to_string())?;
    let scale = info.scale.map_or_else(|| "1/sqrt(head dim)".into(), |scale| scale.to_string());
    for (key, value) in [("model", &info.model), ("source", &info.source), ("scale", &Some(scale))]
    {
        if let Some(value) = value {
            say(&format!("{key:8}{value}"))?;
        }
    }
    say(&format!("\n{table}"))
}

fn cells(number: usize, layout: &Layout) -> [String; 10] {
    let causal = if layout.causal { " (causal)" } else { "" };
    [
        number.to_string(),
        layout.shape.query_heads.to_string(),
        layout.shape.kv_heads.to_string(),
        layout.shape.head_dim.to_string(),
        layout.shape.value_dim.to_string(),
        layout.tokens.to_string(),
        format!("{}{causal}", layout.queries),
        layout.prompt.to_string(),
        if layout.classes { "yes" } else { "no" }.into(),
        layout.storage.name().into(),
    ]
}
