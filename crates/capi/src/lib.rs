//! C interface of vattention.
//!
//! The header `include/vattention.h` is generated from this crate, and a test compares the two.
//! `VATTENTION_UPDATE_HEADER=1 cargo test -p vattention-capi header` writes it. An engine has two
//! ways to use the library:
//!
//! | keys and values are in | functions |
//! |---|---|
//! | the library's cache | `va_attention_*`, `va_attend_batch` |
//! | pages of the engine | `va_pipeline_*`, `va_attend_pages` |
//!
//! Handles are numbers in a table, which C sees as pointers to incomplete types. No call
//! follows such a pointer, so a freed handle is an error and not undefined behaviour. Each call
//! catches panics, and returns a [status](status::va_status).

#![allow(unsafe_code, reason = "a C interface receives pointers")]
#![allow(non_camel_case_types, reason = "the types have these names in C")]
#![allow(clippy::missing_safety_doc, reason = "the documentation of a function is its contract")]
#![deny(unsafe_op_in_unsafe_fn)]

mod arguments;
pub mod array;
pub mod attention;
pub mod batch;
pub mod border;
mod handles;
pub mod layer;
pub mod needs;
pub mod options;
pub mod output;
pub mod pages;
pub mod pipeline;
mod pointers;
pub mod report;
pub mod status;
mod toml_text;
pub mod workers;
