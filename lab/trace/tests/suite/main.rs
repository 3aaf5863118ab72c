//! Traces, as they are written and read, and whatever else is given to their reader.

#![allow(clippy::unwrap_used)]

mod fuzz;
mod traces;
