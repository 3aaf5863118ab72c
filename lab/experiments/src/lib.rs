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
mod indexed;
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
pub use density::{TunedPipeline, tune_to_densities, tune_to_density};
pub use digest::{Digest, FileDigests, digest_of_file, named_files};
pub use dump::Dump;
pub use entry::Entry;
pub use error::{Error, Result};
pub use exact::Exact;
pub use limit::{AlwaysRead, RowLimit, compute_limit, compute_limits};
pub use measured::{Comparison, Guarantee, LiveTokens, PipelineResult};
pub use metrics::{
    Bars, BarsSummary, BlockMean, CountTest, ErrorSummary, Evidence, LEVEL, ListCounts,
    MeanInterval, MeanMax, PairedDifference, RowError, SUSPICION, ShareInterval, ViolationCount,
    Violations, binomial,
};
pub use tune::{
    BestCandidate, Candidate, LeftOutCandidate, TriedCandidate, TuneOptions, Tuning, TuningGoal,
    TuningScore, TuningTraces, tune,
};
pub use units::{
    Header, Incomplete, LineFile, MergedResults, MissingUnit, Part, ResultSink, Results, Shard,
    merge_results,
};
pub use variant::{Variant, named};
pub use verify::{
    EvidenceCounts, FailureCause, FailureCounts, HeadCount, HeadFault, JudgedRows, LayerTrials,
    PromiseTest, PromiseVerdict, RowsTogether, SampleUnit, StepCount, TrialCount, UnitsViolated,
    Verification, try_layer, verify, verify_all, with_delta, with_epsilon,
};
