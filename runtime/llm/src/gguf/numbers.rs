//! Conversion of stored bytes to numbers and matrices.

use half::{bf16, f16};

use super::types::StoredType;
use crate::matrix::Matrix;
use crate::packed::{PackedMatrix, QuantFormat};
use crate::weights::number::finite;

/// Converts the bytes of a matrix of this shape to the type in which it is fastest to multiply.
///
/// # Errors
/// Text to append to the name of the tensor: a number is not finite.
pub(super) fn read_matrix(
    stored: StoredType,
    bytes: &[u8],
    shape: [usize; 2],
) -> Result<Matrix, String> {
    match stored {
        StoredType::Quantised(format) => pack(format, bytes, shape).map(Matrix::packed),
        StoredType::Bf16 => {
            let numbers = bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b));
            Ok(Matrix::bf16(finite(numbers.collect())?, shape))
        }
        StoredType::F32 | StoredType::F16 => Ok(Matrix::f32(read_numbers(stored, bytes)?, shape)),
    }
}

/// Converts the bytes of a vector to f32.
///
/// # Errors
/// The errors of [`read_matrix`].
pub(super) fn read_numbers(stored: StoredType, bytes: &[u8]) -> Result<Vec<f32>, String> {
    finite(match stored {
        StoredType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        StoredType::F16 => {
            bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect()
        }
        StoredType::Bf16 => {
            bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
        }
        StoredType::Quantised(format) => {
            let mut numbers = vec![0.0; bytes.len() / format.file_bytes() * format.unit_weights()];
            pack(format, bytes, [1, numbers.len()])?.read_row(0, &mut numbers);
            numbers
        }
    })
}

fn pack(format: QuantFormat, bytes: &[u8], shape: [usize; 2]) -> Result<PackedMatrix, String> {
    PackedMatrix::new(format, bytes, shape).map_err(|block| {
        format!(": the numbers of block {block} are not finite; expected finite ones")
    })
}

/// Reorders the rows of heads from pairs side by side, the interleaved rotary order, to the first
/// elements of all pairs followed by the second ones, the order of this crate.
pub(super) fn deinterleave<T: Copy>(rows: &[T], count: usize, heads: usize) -> Vec<T> {
    let (size, head_dim) = (rows.len() / count, count / heads);
    let place = |row: usize| {
        let (head, i) = (row / head_dim, row % head_dim);
        head * head_dim + 2 * (i % (head_dim / 2)) + i / (head_dim / 2)
    };
    (0..count).flat_map(|row| &rows[place(row) * size..(place(row) + 1) * size]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_pairs_become_halves() {
        // Two heads of three pairs.
        let rows: Vec<u8> = (0..12).collect();
        assert_eq!(deinterleave(&rows, 12, 2), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
