//! The CUDA backend: rows of keys and values live on the device, and are read there.
//!
//! | file      | what                                                                   |
//! |-----------|------------------------------------------------------------------------|
//! | `device`  | what a machine that runs kernels offers                                |
//! | `kernels` | their sources, and with which constants they are compiled              |

mod device;
mod kernels;

pub use device::{Argument, Device, Grid};
pub use kernels::{Program, Source};
