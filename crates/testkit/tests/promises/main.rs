//! All promises that are tested: heads, pipelines, and pairs of (epsilon, delta).
//!
//! Each test of [`promise_table`] is a group of cases. A case is a pipeline, the promises that it
//! makes one after the other, and the heads on which they are tested: 2,000 samples for each, with
//! fixed seeds, at a significance level of 1e-6 for each count. A case can also require that
//! the same counts find a planted mistake, an underestimated variance, which shows that they can
//! fail. The mistake is planted by requesting a larger epsilon and counting by the original one, or
//! by counting errors that exceed a fraction of their error bar.
//!
//! These tests are a process of their own, because the plug-ins of [`mutants`] are registered here
//! and nowhere else.

#![allow(clippy::unwrap_used)]

mod case;
mod inclusion;
mod messages;
mod mutants;
mod promise_table;
mod softmax_forms;
