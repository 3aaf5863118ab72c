//! Bytes of stored numbers.

use half::{bf16, f16};
use safetensors::Dtype;
use vattention_core::Storage;

/// Number type of keys and values in the file.
pub(super) fn storage_dtype(storage: Storage) -> Dtype {
    match storage {
        Storage::F32 => Dtype::F32,
        Storage::F16 => Dtype::F16,
        Storage::Bf16 => Dtype::BF16,
    }
}

/// Returns the bytes of numbers that the storage type represents exactly.
pub(super) fn to_bytes<'n>(
    numbers: impl IntoIterator<Item = &'n f32>,
    storage: Storage,
) -> Vec<u8> {
    let numbers = numbers.into_iter();
    match storage {
        Storage::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        Storage::F16 => numbers.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        Storage::Bf16 => numbers.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
    }
}

/// Returns the numbers that [`to_bytes`] converted to these bytes.
pub(super) fn from_bytes(bytes: &[u8], storage: Storage) -> Vec<f32> {
    let pairs = || bytes.as_chunks().0.iter();
    match storage {
        Storage::F32 => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        Storage::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        Storage::Bf16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
    }
}
