//! Tests of the reader and the writer of traces.

#![allow(clippy::unwrap_used)]

mod fuzz;
mod traces;
