//! The kernels, emulated and compiled, and the GPU of this machine, if there is one.

#![allow(clippy::unwrap_used)]

mod driver;
mod formula;
mod kernels;
mod nvrtc;
