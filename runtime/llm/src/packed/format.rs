//! Formats of GGUF's blocks.

use candle_core::quantized::GgmlDType;
use half::f16;

use super::BLOCK;

/// Formats whose products are computed by integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantFormat {
    /// `scale · (q - 8)`, four bits.
    Q4_0,
    /// `scale · q + offset`, four bits.
    Q4_1,
    /// `scale · (q - 128)`, eight bits; files store `q - 128`.
    Q8_0,
}

/// A block as a file has it.
pub(super) struct FileBlock {
    pub(super) scale: f16,
    /// Zero where the format has none.
    pub(super) offset: f16,
    /// Unsigned integers of the weights, in order.
    pub(super) quanta: [u8; BLOCK],
}

impl QuantFormat {
    /// Format of a type of GGUF, if products with it are computed by integers.
    pub(crate) fn of_type(dtype: GgmlDType) -> Option<Self> {
        match dtype {
            GgmlDType::Q4_0 => Some(Self::Q4_0),
            GgmlDType::Q4_1 => Some(Self::Q4_1),
            GgmlDType::Q8_0 => Some(Self::Q8_0),
            _ => None,
        }
    }

    /// Bytes of a block, in a file and in memory.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Integer that stands for a weight of zero, before the offset.
    pub(super) const fn zero(self) -> u8 {
        match self {
            Self::Q4_0 => 8,
            Self::Q4_1 => 0,
            Self::Q8_0 => 128,
        }
    }

    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Q4_1)
    }

    /// Two weights of a block share a byte.
    pub(super) const fn has_nibbles(self) -> bool {
        !matches!(self, Self::Q8_0)
    }

    /// Reads a block of `block_bytes` bytes.
    pub(super) fn read(self, bytes: &[u8]) -> FileBlock {
        let number = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let packed = &bytes[bytes.len() - if self.has_nibbles() { BLOCK / 2 } else { BLOCK }..];
        let quantum = |i: usize| match (self.has_nibbles(), i < BLOCK / 2) {
            (true, true) => packed[i] & 15,
            (true, false) => packed[i - BLOCK / 2] >> 4,
            (false, _) => packed[i] ^ 128,
        };
        FileBlock {
            scale: number(0),
            offset: if self.has_offsets() { number(2) } else { f16::ZERO },
            quanta: std::array::from_fn(quantum),
        }
    }
}
