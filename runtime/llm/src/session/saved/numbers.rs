//! Bytes of stored numbers.

use half::{bf16, f16};
use safetensors::Dtype;
use vattention_core::Storage;
use vattention_core::step::{SCALE_BYTES, round_row};

/// Number type of keys and values in the file. In 8 bits, each row is followed by the 4 bytes of
/// its scale.
pub(super) fn storage_dtype(storage: Storage) -> Dtype {
    match storage {
        Storage::F32 => Dtype::F32,
        Storage::F16 => Dtype::F16,
        Storage::Bf16 => Dtype::BF16,
        Storage::Q8 => Dtype::U8,
    }
}

/// Length of a row of `dim` numbers in the file, in elements of [`storage_dtype`].
pub(super) fn stored_dim(dim: usize, storage: Storage) -> usize {
    dim + storage.scale_bytes() / storage.number_bytes()
}

/// Returns the bytes of rows of `dim` numbers that the storage type represents exactly.
pub(super) fn to_bytes<'n>(
    numbers: impl IntoIterator<Item = &'n f32>,
    dim: usize,
    storage: Storage,
) -> Vec<u8> {
    let numbers = numbers.into_iter();
    match storage {
        Storage::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        Storage::F16 => numbers.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        Storage::Bf16 => numbers.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        Storage::Q8 => {
            let numbers: Vec<f32> = numbers.copied().collect();
            let (mut bytes, mut integers) = (Vec::new(), vec![0; dim]);
            for row in numbers.chunks_exact(dim) {
                let scale = round_row(row, &mut integers);
                bytes.extend(integers.iter().map(|x| x.cast_unsigned()));
                bytes.extend(scale.to_le_bytes());
            }
            bytes
        }
    }
}

/// Returns the numbers that [`to_bytes`] converted to these bytes.
pub(super) fn from_bytes(bytes: &[u8], dim: usize, storage: Storage) -> Vec<f32> {
    let pairs = || bytes.as_chunks().0.iter();
    match storage {
        Storage::F32 => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        Storage::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        Storage::Bf16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
        Storage::Q8 => {
            let mut numbers = Vec::new();
            for row in bytes.chunks_exact(dim + SCALE_BYTES) {
                let (integers, scale) = row.split_at(dim);
                let scale = f32::from_le_bytes(scale.try_into().expect("4 bytes"));
                numbers.extend(integers.iter().map(|x| f32::from(x.cast_signed()) * scale));
            }
            numbers
        }
    }
}
