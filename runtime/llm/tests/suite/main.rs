//! Tests of models from files: their results, their memory, and errors of invalid files.

#![allow(clippy::unwrap_used)]

mod batches;
mod bytes;
mod codebooks;
mod common;
mod context;
mod generation;
mod gguf;
mod multimodal;
mod parity;
mod refusals;
mod rotated;
mod saved;
mod sliding;
mod speculation;
mod split;
mod stored;
mod tied;
mod tokenizer;
