//! Backends that run pipelines on the CPU, and the parts that a backend for another device needs.
//!
//! [`Reference`] defines the results that other backends are checked against: one thread, f64 and
//! ndarray, obviously right. [`Cpu`] is fast. Both use a [`Layer`], which has the KV cache, checks
//! input and loops over KV heads; they differ in the [`Executor`] that computes a step.

mod awake;
mod cache;
mod cpu;
mod engine_head;
mod executor;
mod head;
mod head_rows;
mod input;
mod layer;
mod output;
mod parallel;
mod pipelines;
mod reference;
mod row_checksums;
mod tasks;
mod team;
mod workers;

pub use awake::keep_awake;
pub use cache::store;
pub use cpu::{Cpu, Level};
pub use engine_head::EngineHead;
pub use executor::{Executor, HeadInput, HeadOutput, Indexing, RowOutput, RowSums};
pub use head_rows::HeadRows;
pub use layer::{Layer, build_pipelines};
pub use parallel::process;
pub use reference::Reference;
pub use row_checksums::RowChecksums;
pub use vattention_core::step::TaskRunner;
pub use workers::{Pools, Workers};
