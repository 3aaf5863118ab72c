//! Every promise that is tested: heads, pipelines, and pairs of (epsilon, delta).
//!
//! Each test of [`promise_table`] is a group of lines. A line is a pipeline, the promises that it
//! makes one after the other, and the heads on which they are tested: 2,000 samples for each, with fixed
//! seeds, at a level of 1e-6 for each count. A line can also name a mistake that the same counts
//! must find, which shows that they prove something: an error judged by a share of its variance.
//! It is planted by asking for a larger epsilon and counting by the old one, or by counting errors
//! that exceed a share of their bar.
//!
//! A process of its own: the parts of [`mutants`] are registered here and nowhere else.

#![allow(clippy::unwrap_used)]

mod inclusion;
mod line;
mod messages;
mod mutants;
mod promise_table;
