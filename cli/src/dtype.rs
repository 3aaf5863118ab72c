//! How numbers are stored, as the command line names it.

use clap::ValueEnum;
use vattention::Storage;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl From<Dtype> for Storage {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
        }
    }
}
