//! Tasks: what is asked, what is the answer, and how long a context is.

#![allow(clippy::unwrap_used)]

mod benchmarks;
mod common;
mod lengths;
mod metrics;
mod qa;
mod ruler;
mod vocabulary;
