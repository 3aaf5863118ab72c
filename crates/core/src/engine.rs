//! The traits of backends, which own KV caches and run pipelines, and the records of the tokens
//! that they read.

mod backend;
mod selection;
mod state;
mod wrapped;

pub use backend::{
    Attention, Backend, BatchEntry, FallBack, Options, Output, PageSize, Placement, Storage,
    Timings,
};
pub use selection::Selection;
pub use state::{AttentionState, KeyValueRows, ObservedPrompt, SequencePoint};
pub use wrapped::{Wrapper, wrap};
