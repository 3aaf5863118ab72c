//! Measurements of pipelines on [traces](vattention_trace): errors against exact attention, tests
//! of promises, the studies of the paper, and the speed of a decode step.

mod bench;
mod beside;
mod classes;
mod compare;
mod density;
mod digest;
mod dump;
mod entry;
mod error;
mod exact;
mod limit;
mod measured;
mod metrics;
pub mod study;
mod tune;
mod units;
mod variant;
mod verify;

pub use bench::{
    Bandwidth, Bench, BenchHeads, BenchReport, BenchRow, Machine, TracedHeads, at_density,
    available_memory, decides_itself, row_bytes, with_sizes,
};
pub use beside::DenseBeside;
pub use classes::expect_classes;
pub use compare::{TraceSettings, chosen_layers, compare};
pub use density::{TunedPipeline, at_densities, tune_to_density};
pub use digest::{Digest, Files, digest_of_file, named_files};
pub use dump::Dump;
pub use entry::Entry;
pub use error::{Error, Result};
pub use exact::Exact;
pub use limit::{AlwaysRead, RowLimit, compute_limit, compute_limits};
pub use measured::{Comparison, Guarantee, LiveTokens, Measured};
pub use metrics::{
    Bars, BarsSummary, CountTest, ErrorSummary, Evidence, LEVEL, MeanMax, PairedDifference,
    RowError, SUSPICION, ShareInterval, TokenLists, ViolationCount, Violations, binomial,
};
pub use tune::{
    Best, Candidate, LeftOutCandidate, Tried, TuneOptions, Tuning, TuningGoal, TuningScore,
    TuningTraces, tune,
};
pub use units::{
    Header, Incomplete, LineFile, Merged, Missing, Part, ResultSink, Results, Shard, merge_results,
};
pub use variant::{Variant, named};
pub use verify::{
    Count, EvidenceCounts, FailureCause, FailureCounts, HeadCount, HeadFault, JudgedRows,
    LayerTrials, PromiseTest, PromiseVerdict, RowsTogether, SampleUnit, StepCount, UnitsViolated,
    Verification, at_delta, at_epsilon, try_layer, verify, verify_all,
};
