//! Description of a tensor in the header of a GGUF file.

use super::types::StoredType;

/// Type, shape and position of a tensor.
#[derive(Clone, Debug)]
pub(super) struct GgufTensor {
    pub(super) stored: StoredType,
    /// Dimensions; the last one is contiguous.
    pub(super) shape: Vec<usize>,
    /// Distance in bytes from the beginning of the data.
    pub(super) offset: u64,
}

impl GgufTensor {
    /// Bytes of the tensor in its file; `None` if its rows are not whole blocks, or the number
    /// overflows.
    pub(super) fn bytes(&self) -> Option<u64> {
        let block = self.stored.block_size();
        let whole = self.shape.last().is_some_and(|row| row.is_multiple_of(block));
        let count = self.shape.iter().try_fold(1_u64, |all, &size| all.checked_mul(size as u64))?;
        let size = (count / block as u64).checked_mul(self.stored.block_bytes() as u64)?;
        whole.then_some(size)
    }

    /// Bytes that the tensor takes in memory.
    pub(super) fn bytes_in_memory(&self) -> u64 {
        let count: u64 = self.shape.iter().map(|&size| size as u64).product();
        match (self.stored, self.shape.len()) {
            (StoredType::Bf16, 2 | 3) => 2 * count,
            (StoredType::Quantised(format), 2 | 3) => format.memory_bytes(&self.shape),
            _ => 4 * count,
        }
    }
}
