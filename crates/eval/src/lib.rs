//! Measuring pipelines: captured or synthetic traces, and how far a pipeline is from exact
//! attention on them. The feature `plots` adds plots, and the studies of the paper, which are drawn.

mod bench;
mod beside;
mod compare;
mod density;
mod dump;
mod error;
mod exact;
mod file;
mod limit;
mod measured;
mod metrics;
#[cfg(feature = "plots")]
mod plot;
#[cfg(feature = "plots")]
pub mod study;
mod synth;
mod tensors;
mod trace;
mod variant;
mod verify;

pub use bench::{
    Bandwidth, Bench, BenchHeads, BenchReport, BenchRow, Machine, TracedHeads, at_density,
    available_memory, decides_itself, row_bytes, sized,
};
pub use beside::DenseBeside;
pub use compare::{Entry, TraceSettings, chosen_layers, compare};
pub use density::{Tuned, made_to_read, named};
pub use dump::Dump;
pub use error::{Error, Result};
pub use exact::Exact;
pub use file::{check_writable, partial_path, write_beside};
pub use limit::{Certain, RowLimit, limit, limits};
pub use measured::{Comparison, Density, Guarantee, Measured};
pub use metrics::{
    Bars, CountTest, ErrorSummary, Evidence, LEVEL, MeanMax, PairedDifference, RowError,
    Violations, binomial,
};
#[cfg(feature = "plots")]
pub use plot::{CurvePanel, Figure, Line, LinePanel, plot, plot_bench, plot_errors};
pub use synth::{HeadKind, Synth};
pub use tensors::Tensors;
pub use trace::{Layout, Trace, TraceInfo, TraceLayer, write_trace};
pub use variant::Variant;
pub use verify::{
    Cause, Count, EvidenceCounts, Failures, Fault, HeadCount, LayerTrials, StepCount, Verification,
    at_delta, at_epsilon, try_layer, verify,
};
