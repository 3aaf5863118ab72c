//! What is shipped is what the schema, the README and docs/pipelines.md say. Apart from `tests/suite`, because toys that are
//! registered there are in its registry, too.

#![allow(clippy::unwrap_used)]

mod circles;
mod configs;
#[path = "../suite/common/files.rs"]
mod files;
mod readme;
