//! Tests across crates. All test plug-ins must be registered, because a pipeline file cannot be
//! read otherwise. Tests of the shipped files are in `tests/shipped`, without test plug-ins.

#![allow(clippy::unwrap_used)]

mod adjusted;
mod append;
mod backends;
mod cache;
mod certificates;
mod combinations;
mod common;
mod comparison;
mod cpu;
mod cuda;
mod cuda_edges;
mod cuda_steps;
mod custom_plugins;
mod engine_head;
mod engine_rows;
mod evictors;
mod golden_budgets;
mod golden_double_sparsity;
mod golden_hash;
mod golden_magic_pig;
mod golden_pq;
mod golden_quest;
mod inclusion;
mod invariants;
mod layers;
mod magnitudes;
mod no_draws;
mod parity;
mod promises;
mod rewind;
mod rotations;
mod rounding;
mod selector_calls;
mod softmax_experiments;
mod softmax_forms;
mod softmax_keys;
mod softmax_laws;
mod stored;
mod truncation;
mod verify;
mod weights;
