//! Engines: the traits of backends, which own the KV cache, and what pipelines select for those
//! that have kernels of their own.

mod backend;
mod selection;
mod wrapped;

pub use backend::{
    Attention, Backend, FallBack, Options, Output, PageSize, Placement, Storage, Timings, Turn,
};
pub use selection::Selection;
pub use wrapped::{Wrapper, wrap};
