//! Tests of the header, and of programs in C and C++ that use the library.

#![allow(clippy::unwrap_used)]
#![allow(unsafe_code, reason = "the interface receives pointers")]

mod compiler;
mod header;
mod needs;
mod pages;
mod programs;
