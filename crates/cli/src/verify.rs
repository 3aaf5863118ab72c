//! `vattention verify`: whether a pipeline keeps its promise on a trace.

use std::path::{Path, PathBuf};

use comfy_table::{CellAlignment, Table, presets};
use vattention::eval::{HeadCount, LEVEL, Trace, Verification, binomial, verify};

use crate::check::{Loaded, load_all};
use crate::outputs::{check_outputs, write_json};
use crate::{Failure, progress, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A pipeline file whose estimator promises something.
    config: PathBuf,
    /// The trace to draw samples on.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Samples for each KV head, spread over its queries.
    #[arg(long, default_value_t = 2000)]
    trials: u32,
    /// A change to the pipeline, such as estimator.epsilon=0.1.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write the verdict and every head's count as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Heads shown, those with most violations first.
const SHOWN: usize = 8;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Loaded { pipelines, files } = load_all(std::slice::from_ref(&args.config), &args.set)?;
    let inputs: Vec<&Path> = files.iter().chain([&args.trace]).map(PathBuf::as_path).collect();
    let trace = Trace::open(&args.trace)?;
    check_outputs(&[("--json", args.json.as_ref())], &inputs)?;
    if pipelines[0].promise().is_none() {
        let file = args.config.display();
        let message =
            format!("{file}: promises nothing; expected an [estimator] with epsilon and delta");
        return Err(Failure::input(message));
    }
    let bar = progress::bar("samples");
    let verdict = verify(&pipelines[0], &trace, args.trials, &|done, total| {
        progress::show(&bar, done, total);
    })?;
    bar.finish_and_clear();
    if let Some(path) = &args.json {
        write_json(path, &verdict)?;
    }
    say(&format!("{}\n\n{}", table(&verdict), summary(&verdict)))?;
    if verdict.held { Ok(()) } else { Err(Failure::No) }
}

fn table(verdict: &Verification) -> String {
    let mut heads = verdict.heads.clone();
    heads.sort_by_key(|head| std::cmp::Reverse(head.violations));
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["layer", "query head", "broken", "rate", "95 % bound", "p-value"]);
    for head in heads.iter().take(SHOWN) {
        table.add_row(cells(head));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let more = match heads.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("\n ... and {more} heads with fewer or as many"),
    };
    format!("{table}{more}")
}

fn cells(head: &HeadCount) -> [String; 6] {
    let upper = binomial::upper_bound(head.violations, head.trials, 0.05);
    [
        head.layer.to_string(),
        head.query_head.to_string(),
        format!("{} of {}", head.violations, head.trials),
        format!("{:.4}", head.violations as f64 / head.trials as f64),
        format!("{upper:.4}"),
        format!("{:.1e}", head.p_value),
    ]
}

fn summary(verdict: &Verification) -> String {
    let Verification { pipeline, violations, trials, delta, kind, p_value, .. } = verdict;
    let answer = if verdict.held {
        format!("held: no head and no row contradicts delta = {delta}")
    } else {
        format!("broken: delta = {delta} is contradicted")
    };
    let rate = *violations as f64 / *trials as f64;
    let limit = LEVEL / verdict.heads.len() as f64;
    let row = verdict.worst_row;
    format!(
        "{pipeline}: {violations} of {trials} samples broke the promise, a rate of {rate:.4}\n\
         worst row: layer {}, query head {}, query {}: {} of {} (p-value {:.1e})\n\
         {answer} (smallest p-value of a head {p_value:.1e}, limit {limit:.1e}; kind {kind})",
        row.layer, row.query_head, row.query, row.violations, row.trials, row.p_value
    )
}
