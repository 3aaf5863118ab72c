//! Attention heads as data: queries, keys and values, captured from a model or synthetic, and the
//! files that store them. Training and capture of traces need this crate without experiments.

mod error;
mod file;
mod synth;
mod tensors;
mod trace;

pub use error::{Error, Result};
pub use file::{check_writable, partial_path, write_beside, write_beside_with};
pub use synth::{HeadKind, Synth};
pub use tensors::Tensors;
pub use trace::{Layout, Trace, TraceInfo, TraceLayer, TraceLayers, write_trace};
