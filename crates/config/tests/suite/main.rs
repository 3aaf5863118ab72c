//! Loading of pipeline files, and messages about their problems.

#![allow(clippy::unwrap_used)]

mod extends;
mod fuzz;
mod grid;
mod layers;
mod load;
