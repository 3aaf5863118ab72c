//! What crosses crates. No component may be read here that is not registered, so every toy is: what is
//! shipped is looked at in `tests/shipped`, where there is none.

#![allow(clippy::unwrap_used)]

mod append;
mod backends;
mod cache;
mod certificates;
mod combinations;
mod common;
mod compared;
mod cpu;
mod cuda;
mod cuda_edges;
mod cuda_steps;
mod custom_plugins;
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
mod nothing_drawn;
mod parity;
mod promises;
mod taken_back;
mod told;
mod verify;
mod weights;
