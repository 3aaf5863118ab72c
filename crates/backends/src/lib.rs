//! Backends that run pipelines on the CPU, and what one on another machine is made of.
//!
//! [`Reference`] is the judge: one thread, f64, ndarray, obviously right. [`Cpu`] is for use. They
//! share the KV cache, the checks of input and the walk over KV heads, which are a [`Layer`], and
//! differ in how its [`Machine`] answers the queries of a step.

mod cache;
mod cpu;
mod head;
mod input;
mod layer;
mod machine;
mod reference;
mod workers;

pub use cache::store;
pub use cpu::Cpu;
pub use layer::Layer;
pub use machine::{HeadStep, Machine, RowStep, RowSums, Situation};
pub use reference::Reference;
pub use workers::{Pools, Workers};
