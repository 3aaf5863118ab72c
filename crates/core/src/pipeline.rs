//! Pipelines: their configuration, and their execution for one KV head.

mod check;
mod config;
mod conflicts;
mod drawing;
mod first_sizes;
mod kv_head;
mod layers;
mod learning_record;
mod reading;
mod rounding;
mod row_report;
mod search;

pub use config::{LayerSettings, PipelineConfig, Share};
pub use kv_head::{Choice, Pipeline};
pub use layers::Layers;
pub use reading::{List, Read, Reading};
pub use rounding::RowRounding;
pub use row_report::RowReport;
pub use search::required_size;
