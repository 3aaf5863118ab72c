//! Runs of the command, with its output and messages (`snapshots`).

#![allow(clippy::unwrap_used)]

mod backend;
mod bench;
mod benchmarks;
mod capture;
mod changes;
mod chat;
mod classes;
mod cli;
mod evaluate;
mod families;
mod generate;
mod gguf;
mod json_fields;
mod malformed;
mod perplexity;
mod reference;
mod sampling;
mod serve;
mod sessions;
mod shards;
mod speculation;
mod study;
mod training;
mod tune;
mod world;
