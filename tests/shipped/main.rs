//! Checks of the repository itself: its files, pages and crates. A binary of its own, because toys that
//! `tests/suite` registers would be in its registry, too.

#![allow(clippy::unwrap_used)]

mod circles;
mod configs;
#[path = "../suite/common/files.rs"]
mod files;
mod plugin;
mod readme;
mod sources;
