//! Backends that run pipelines on the CPU.
//!
//! [`Reference`] is the judge: one thread, f64, ndarray, obviously right. [`Cpu`] is for use. They
//! share the KV cache, the checks of input and the walk over KV heads, and differ in
//! how one KV head answers a query.

mod cache;
mod cpu;
mod input;
mod layer;
mod reference;

pub use cpu::Cpu;
pub use reference::Reference;
