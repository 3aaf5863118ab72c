//! Pipeline files: reads TOML into a [`PipelineConfig`](vattention_core::PipelineConfig), or
//! reports every problem in the file with its place, the expected value and a suggestion.
//!
//! The text is parsed into a tree of nodes that store their places in the text; `extends` and
//! `--set` merge trees. Then each component is deserialized from its own node, so that one bad
//! component does not hide the problems of the next.

mod de;
mod duplicates;
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
mod to_toml;
mod words;

pub use grid::{GridPoint, ParameterGrid};
pub use library::{NamedPipeline, pipeline_names};
pub use listing::{ComponentEntry, Field, listing};
pub use load::{Loader, load};
pub use makers::file_advice;
pub use names::suggest_type as meant_component;
pub use problem::{ConfigError, Problem};
pub use schema::schema;
pub use sizes::shares;
pub use to_toml::to_toml;
