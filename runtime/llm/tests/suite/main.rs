//! Models from files: what they answer, what they take in memory, and what is refused.

#![allow(clippy::unwrap_used)]

mod bytes;
mod common;
mod context;
mod gguf;
mod parity;
mod refusals;
mod stored;
mod tied;
mod tokenizer;
