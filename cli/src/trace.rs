//! `vattention trace`: checks a whole trace, and shows its layers.

use std::path::PathBuf;

use vattention::trace::{Layout, Trace};

use crate::fail::{Failure, say};
use crate::table::{self, Column};

#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// Trace file.
    file: PathBuf,
}

pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    let trace = Trace::open(&args.file)?;
    let layers: Vec<(usize, Layout)> = trace.layers().collect();
    for (number, _) in &layers {
        trace.layer(*number).expect("the layer was listed")?;
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
    say(&format!("\n{}", table::show(&columns(), &layers)))
}

fn columns() -> Vec<Column<'static, (usize, Layout)>> {
    type LayerColumn = Column<'static, (usize, Layout)>;
    vec![
        LayerColumn::new("layer", "", |(number, _)| number.to_string()),
        LayerColumn::new("query heads", "", |(_, it)| it.shape.query_heads.to_string()),
        LayerColumn::new("KV heads", "", |(_, it)| it.shape.kv_heads.to_string()),
        LayerColumn::new("head dim", "", |(_, it)| it.shape.head_dim.to_string()),
        LayerColumn::new("value dim", "", |(_, it)| it.shape.value_dim.to_string()),
        LayerColumn::new("tokens", "", |(_, it)| it.tokens.to_string()),
        LayerColumn::new("queries", "", |(_, it)| {
            format!("{}{}", it.queries, if it.causal { " (causal)" } else { "" })
        }),
        LayerColumn::new("prompt", "", |(_, it)| it.prompt.to_string()),
        LayerColumn::new("classes", "", |(_, it)| if it.classes { "yes" } else { "no" }.into()),
        LayerColumn::new("softmax", "", |(_, it)| softmax(it).into()),
        LayerColumn::new("stored", "", |(_, it)| it.storage.name().into()),
    ]
}

/// Describes the softmax of a layer.
fn softmax(layout: &Layout) -> &'static str {
    match (layout.soft_cap, layout.sinks) {
        (false, false) => "plain",
        (true, false) => "capped",
        (false, true) => "with sinks",
        (true, true) => "capped, with sinks",
    }
}
