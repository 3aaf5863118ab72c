//! Tests of the tasks: their texts, answers and lengths.

#![allow(clippy::unwrap_used)]

mod benchmarks;
mod common;
mod lengths;
mod long_benchmarks;
mod metrics;
mod qa;
mod ruler;
mod vocabulary;
