//! The kernels, emulated on the host, against definitions in f64 and against core's own types.

#![allow(clippy::unwrap_used)]

mod attend;
mod sample;
mod sanitizer;
mod select;
mod world;
