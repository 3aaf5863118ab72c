//! The rules of a step, the order of samples, and what checks of samples find, as users of the crate see them.

#![allow(clippy::unwrap_used)]

mod checks;
mod golden_order;
mod rules;
