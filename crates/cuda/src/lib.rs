//! The CUDA backend. Rows of keys and values live in device memory.
//!
//! | module     | contents                                                            |
//! |------------|---------------------------------------------------------------------|
//! | `gpu`      | the backend over any device, and over the GPU of this machine       |
//! | `plan`     | translation of a pipeline into operations of the device             |
//! | `formula`  | budgets of estimators as formulas that the device evaluates         |
//! | `executor` | execution of a step, by a routine or by selection on the host       |
//! | `routine`  | a whole step on the device, recorded once                           |
//! | `results`  | conversion of a routine's results into outputs of query heads       |
//! | `rows`     | keys and values on the device                                       |
//! | `index`    | indexes of selectors on the device                                  |
//! | `device`   | interface of a machine that runs kernels                            |
//! | `driver`   | NVIDIA GPUs, through their driver and its compiler                  |
//! | `kernels`  | sources of the kernels, and the constants for their compilation     |
//! | `launch`   | a safe launch function for each kernel, and the arrays that it uses |
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
mod results;
mod routine;
mod rows;

pub use device::{Argument, Device, Grid, Kernel};
pub use driver::{CompiledProgram, Compiler, Driver, DriverGraph, DriverMemory};
pub use gpu::{Cuda, Gpu};
pub use kernels::{KernelSource, Program};
