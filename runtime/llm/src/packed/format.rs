//! Formats of GGUF's blocks.

use candle_core::quantized::GgmlDType;
use half::f16;

use super::{BLOCK, LANES};

/// Blocks that share a scale in the formats whose names end in K.
pub(super) const SUPER_BLOCK: usize = 8;

/// Formats whose products are computed by integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantFormat {
    /// `scale · (q - 8)`, four bits.
    Q4_0,
    /// `scale · q + offset`, four bits.
    Q4_1,
    /// `scale · (q - 16)`, five bits.
    Q5_0,
    /// `scale · q + offset`, five bits.
    Q5_1,
    /// `scale · q`, eight bits.
    Q8_0,
    /// `scale · s · q - offset · o`, four bits, with a six-bit `s` and `o` for each block.
    Q4K,
    /// The same with five bits.
    Q5K,
    /// `scale · s · (q - 32)`, six bits, with an eight-bit `s` for each half of a block.
    Q6K,
}

/// A block as it is packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Unsigned integers, of which [`QuantFormat::zero`] stands for zero.
    pub(super) quanta: [u8; BLOCK],
    /// Factors of the scale, of each half; 1 where the format has none.
    pub(super) scales: [i8; 2],
    /// Factor of the offset.
    pub(super) offset: i8,
}

impl QuantFormat {
    /// Format of a type of GGUF, if products with it are computed by integers.
    pub(crate) fn of_type(dtype: GgmlDType) -> Option<Self> {
        match dtype {
            GgmlDType::Q4_0 => Some(Self::Q4_0),
            GgmlDType::Q4_1 => Some(Self::Q4_1),
            GgmlDType::Q5_0 => Some(Self::Q5_0),
            GgmlDType::Q5_1 => Some(Self::Q5_1),
            GgmlDType::Q8_0 => Some(Self::Q8_0),
            GgmlDType::Q4K => Some(Self::Q4K),
            GgmlDType::Q5K => Some(Self::Q5K),
            GgmlDType::Q6K => Some(Self::Q6K),
            _ => None,
        }
    }

    /// Blocks that share a scale.
    pub(super) const fn unit_blocks(self) -> usize {
        if self.is_nested() { SUPER_BLOCK } else { 1 }
    }

    /// Bytes in a file, of the blocks that share a scale.
    pub(super) fn file_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes that matrices `[.., outputs, inputs]` take in memory.
    pub(crate) fn memory_bytes(self, dims: &[usize]) -> u64 {
        let quanta = self.lines() * 4;
        let factors = self.scale_factors() + self.offset_factors();
        let numbers = if self.has_offsets() { 4 } else { 2 };
        let unit = self.unit_blocks() * (quanta + factors) + numbers;
        let units = dims[dims.len() - 1] / BLOCK / self.unit_blocks();
        let outputs = dims[dims.len() - 2].next_multiple_of(LANES);
        let count: u64 = dims[..dims.len() - 2].iter().map(|&size| size as u64).product();
        count * (outputs * units * unit) as u64
    }

    /// Integer that stands for a weight of zero, before the offset.
    pub(super) const fn zero(self) -> u8 {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => 0,
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6K => 32,
            Self::Q8_0 => 128,
        }
    }

    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K)
    }

    /// Bits of an integer beyond four; four for whole bytes.
    pub(super) const fn high_bits(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => 0,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 1,
            Self::Q6K => 2,
            Self::Q8_0 => 4,
        }
    }

    /// Cache lines of a block of sixteen outputs.
    pub(super) const fn lines(self) -> usize {
        4 + self.high_bits()
    }

    /// Factors of the scale for a block: none, one, or one for each half.
    pub(super) const fn scale_factors(self) -> usize {
        match self {
            Self::Q4K | Self::Q5K => 1,
            Self::Q6K => 2,
            _ => 0,
        }
    }

    /// Factors of the offset for a block.
    pub(super) const fn offset_factors(self) -> usize {
        if self.is_nested() && self.has_offsets() { 1 } else { 0 }
    }

    /// Scales have factors for each block.
    pub(super) const fn is_nested(self) -> bool {
        self.scale_factors() > 0
    }

    /// Scale and offset of a unit of `file_bytes` bytes; the offset is zero where the format has none.
    pub(super) fn read_numbers(self, unit: &[u8]) -> [f16; 2] {
        let number = |at: usize| f16::from_le_bytes([unit[at], unit[at + 1]]);
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => [number(0), f16::ZERO],
            Self::Q4_1 | Self::Q5_1 => [number(0), number(2)],
            Self::Q4K | Self::Q5K => [number(0), -number(2)],
            Self::Q6K => [number(208), f16::ZERO],
        }
    }

    /// Block `i` of a unit of `file_bytes` bytes.
    pub(super) fn read_block(self, unit: &[u8], i: usize) -> Block {
        let plain = |quanta| Block { quanta, scales: [1; 2], offset: 1 };
        match self {
            Self::Q4_0 => plain(nibbles(&unit[2..])),
            Self::Q4_1 => plain(nibbles(&unit[4..])),
            Self::Q5_0 => plain(five_bits(&unit[2..])),
            Self::Q5_1 => plain(five_bits(&unit[4..])),
            Self::Q8_0 => plain(std::array::from_fn(|i| unit[2 + i].wrapping_add(128))),
            Self::Q4K => read_q4k(&unit[4..], i),
            Self::Q5K => read_q5k(&unit[4..], i),
            Self::Q6K => read_q6k(unit, i),
        }
    }
}

/// Low halves of sixteen bytes, then high ones.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| nibble(bytes[i % 16], i / 16))
}

/// The low half of a byte, or the high one.
fn nibble(byte: u8, half: usize) -> u8 {
    byte >> (4 * half) & 15
}

/// Four bytes with a fifth bit of each of 32 weights, then the nibbles.
fn five_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let low = nibbles(&bytes[4..]);
    std::array::from_fn(|i| low[i] | (bytes[i / 8] >> (i % 8) & 1) << 4)
}

/// Factors of the scale and the offset of block `i`, six bits each, of twelve bytes.
fn read_factors(bytes: &[u8], i: usize) -> [i8; 2] {
    let [scale, offset] = if i < 4 {
        [bytes[i] & 63, bytes[i + 4] & 63]
    } else {
        [bytes[i + 4] & 15 | bytes[i - 4] >> 6 << 4, bytes[i + 4] >> 4 | bytes[i] >> 6 << 4]
    };
    [scale as i8, offset as i8]
}

/// Twelve bytes of factors, then the nibbles of pairs of blocks.
fn read_q4k(bytes: &[u8], block: usize) -> Block {
    let [scale, offset] = read_factors(bytes, block);
    let pair = &bytes[12 + block / 2 * BLOCK..][..BLOCK];
    let quanta = std::array::from_fn(|i| nibble(pair[i], block % 2));
    Block { quanta, scales: [scale; 2], offset }
}

/// Twelve bytes of factors, a fifth bit of weight `i` of each block in byte `i`, then the nibbles.
fn read_q5k(bytes: &[u8], block: usize) -> Block {
    let [scale, offset] = read_factors(bytes, block);
    let (high, rest) = (&bytes[12..12 + BLOCK], &bytes[12 + BLOCK..]);
    let pair = &rest[block / 2 * BLOCK..][..BLOCK];
    let quantum = |i: usize| nibble(pair[i], block % 2) | (high[i] >> block & 1) << 4;
    Block { quanta: std::array::from_fn(quantum), scales: [scale; 2], offset }
}

/// Low nibbles of 256 weights, high pairs of bits, and sixteen factors. In each half of the weights,
/// blocks 0 and 2 share bytes of nibbles, 1 and 3 too, and all four share those of pairs.
fn read_q6k(bytes: &[u8], block: usize) -> Block {
    let (half, of_half) = (block / 4, block % 4);
    let low = &bytes[half * 64 + of_half % 2 * BLOCK..][..BLOCK];
    let high = &bytes[128 + half * BLOCK..][..BLOCK];
    let quantum = |i: usize| nibble(low[i], of_half / 2) | (high[i] >> (2 * of_half) & 3) << 4;
    let factors = [bytes[192 + 2 * block], bytes[193 + 2 * block]];
    Block {
        quanta: std::array::from_fn(quantum),
        scales: factors.map(|byte| byte as i8),
        offset: 1,
    }
}
