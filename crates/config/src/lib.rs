//! Pipeline files: TOML in, a [`PipelineConfig`](vattention_core::PipelineConfig) out, or every
//! problem in the file with its place, what was expected, and what may have been meant.
//!
//! The text becomes a tree of nodes that remember where they stand; `extends` and `--set` merge
//! trees; then each component is read from its own node, so that one bad component does not hide
//! the next.

mod de;
mod extends;
mod fault;
mod files;
mod grid;
mod layers;
mod library;
mod listing;
mod load;
mod makers;
mod names;
mod node;
mod problem;
mod reader;
mod schema;
mod sizes;
mod twice;
mod words;
mod written;

pub use grid::{GridPoint, ParameterGrid};
pub use library::{NamedPipeline, pipeline_names};
pub use listing::{ComponentEntry, Field, listing};
pub use load::{Loader, load};
pub use makers::file_advice;
pub use names::type_meant as meant_component;
pub use problem::{ConfigError, Problem};
pub use schema::schema;
pub use sizes::shares;
pub use written::to_toml;
