//! The CUDA backend: rows of keys and values live on the device, and are read there.
//!
//! | file      | what                                                                   |
//! |-----------|------------------------------------------------------------------------|
//! | `gpu`     | the backends: over any device, and over the GPU of this machine        |
//! | `plan`    | a pipeline as operations of the device, read from its parts by type    |
//! | `formula` | budgets of estimators as formulas that the device evaluates            |
//! | `executor`| a step: by a routine, or the host chooses and the device reads         |
//! | `routine` | a whole step on the device, recorded once                              |
//! | `answered`| from what a routine found to the answers of rows                       |
//! | `rows`    | keys and values, growing on the device                                 |
//! | `index`   | what selectors keep of the keys, on the device                         |
//! | `device`  | what a machine that runs kernels offers                                |
//! | `driver`  | NVIDIA GPUs, through their driver and its compiler                     |
//! | `kernels` | their sources, and with which constants they are compiled              |
//! | `launch`  | one safe function for each kernel, and the arrays that it takes        |

mod answered;
mod device;
#[allow(unsafe_code)]
mod driver;
mod executor;
pub mod formula;
mod gpu;
mod index;
mod kernels;
pub mod launch;
mod plan;
mod routine;
mod rows;

pub use device::{Argument, Device, Grid, Kernel};
pub use driver::{Compiled, Compiler, Driver, DriverGraph, DriverMemory};
pub use gpu::{Cuda, Gpu};
pub use kernels::{Program, Source};
