//! Checks of the repository itself: its files, pages and crates. They are a binary of their own,
//! because the test plug-ins of `tests/suite` must not be in the registry.

#![allow(clippy::unwrap_used)]

mod circles;
mod configs;
#[path = "../suite/common/files.rs"]
mod files;
mod plugin;
mod readme;
mod sources;
