//! Tests of the crate's public interface: the rules of a step, the order of samples, and the
//! statistics that estimators receive.

#![allow(clippy::unwrap_used)]

mod checks;
mod golden_order;
mod rules;
