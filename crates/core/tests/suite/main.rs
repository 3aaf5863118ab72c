//! The rules of a step, the order of samples, and what looks tell, as users of the crate see them.

#![allow(clippy::unwrap_used)]

mod golden_order;
mod looks;
mod rules;
