//! The CUDA backend: rows of keys and values live on the device, and are read there.
//!
//! | file      | what                                                                   |
//! |-----------|------------------------------------------------------------------------|
//! | `device`  | what a machine that runs kernels offers                                |
//! | `kernels` | their sources, and with which constants they are compiled              |
//! | `launch`  | one safe function for each kernel, and the arrays that it takes        |

mod device;
mod kernels;
pub mod launch;

pub use device::{Argument, Device, Grid};
pub use kernels::{Program, Source};
