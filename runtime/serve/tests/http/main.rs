//! Tests of the server with the model of `models/recall`.

#![allow(clippy::unwrap_used)]

mod chats;
mod common;
mod completions;
mod connections;
mod errors;
mod fuzz;
mod guards;
mod streams;
mod tokenizers;
mod types;
