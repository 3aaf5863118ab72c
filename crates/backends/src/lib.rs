//! Backends that run pipelines on the CPU, and what one on another machine is made of.
//!
//! [`Reference`] is what the others are checked against: one thread, f64, ndarray, obviously right. [`Cpu`] is for use. They
//! share the KV cache, the checks of input and the walk over KV heads, which are a [`Layer`], and
//! differ in how its [`Executor`] answers the queries of a step.

mod cache;
mod cpu;
mod executor;
mod head;
mod input;
mod layer;
mod reference;
mod workers;

pub use cache::store;
pub use cpu::{Cpu, Level};
pub use executor::{Executor, HeadInput, HeadOutput, Indexing, RowOutput, RowSums};
pub use layer::{Layer, build_pipelines};
pub use reference::Reference;
pub use workers::{Pools, Workers};
