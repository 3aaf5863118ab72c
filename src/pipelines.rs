//! Built-in pipelines: the files of the folder `configs` that need no weights.

use vattention_config::NamedPipeline;
use vattention_core::inventory;

include!(concat!(env!("OUT_DIR"), "/pipelines.rs"));
