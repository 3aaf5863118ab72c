//! Formats of GGUF's blocks of quantised weights.

use candle_core::quantized::GgmlDType;
use half::f16;

use super::{BLOCK, LANES};

/// Number of blocks that share a scale, in the formats whose names end in K.
pub(super) const SUPER_BLOCK: usize = 8;

/// Quantised formats whose products are computed by integer instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantFormat {
    /// `scale · (q - 8)`, with four-bit `q`.
    Q4_0,
    /// `scale · q + offset`, with four-bit `q`.
    Q4_1,
    /// `scale · (q - 16)`, with five-bit `q`.
    Q5_0,
    /// `scale · q + offset`, with five-bit `q`.
    Q5_1,
    /// `scale · q`, with eight-bit `q`.
    Q8_0,
    /// `scale · s · q - offset · o`, with four-bit `q`, and a six-bit `s` and `o` for each block.
    Q4K,
    /// Like `Q4K`, with five-bit `q`.
    Q5K,
    /// `scale · s · (q - 32)`, with six-bit `q`, and an eight-bit `s` for each half of a block.
    Q6K,
}

/// Block of quantised weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuantBlock {
    /// Unsigned integers; [`QuantFormat::zero`] represents zero.
    pub(super) quanta: [u8; BLOCK],
    /// Factors of the scale for each half; 1 if the format has none.
    pub(super) scales: [i8; 2],
    /// Factor of the offset.
    pub(super) offset: i8,
}

impl QuantFormat {
    /// Returns the format of a GGUF type, if its products are computed by integer instructions.
    pub(crate) fn from_type(dtype: GgmlDType) -> Option<Self> {
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

    /// Number of blocks that share a scale: a unit.
    pub(super) const fn unit_blocks(self) -> usize {
        if self.is_nested() { SUPER_BLOCK } else { 1 }
    }

    /// Bytes of a unit in a file.
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

    /// Integer that represents a weight of zero, before the offset.
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

    /// Number of bits of an integer beyond four; four for whole bytes.
    pub(super) const fn high_bits(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => 0,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 1,
            Self::Q6K => 2,
            Self::Q8_0 => 4,
        }
    }

    /// Number of cache lines that a block of sixteen outputs takes.
    pub(super) const fn lines(self) -> usize {
        4 + self.high_bits()
    }

    /// Number of factors of the scale per block: none, one, or one for each half.
    pub(super) const fn scale_factors(self) -> usize {
        match self {
            Self::Q4K | Self::Q5K => 1,
            Self::Q6K => 2,
            _ => 0,
        }
    }

    /// Number of factors of the offset per block.
    pub(super) const fn offset_factors(self) -> usize {
        if self.is_nested() && self.has_offsets() { 1 } else { 0 }
    }

    /// Returns true if each block has factors of the scale.
    pub(super) const fn is_nested(self) -> bool {
        self.scale_factors() > 0
    }

    /// Reads the scale and offset of a unit of `file_bytes` bytes; the offset is zero if the format
    /// has none.
    pub(super) fn read_numbers(self, unit: &[u8]) -> [f16; 2] {
        let number = |at: usize| f16::from_le_bytes([unit[at], unit[at + 1]]);
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 => [number(0), f16::ZERO],
            Self::Q4_1 | Self::Q5_1 => [number(0), number(2)],
            Self::Q4K | Self::Q5K => [number(0), -number(2)],
            Self::Q6K => [number(208), f16::ZERO],
        }
    }

    /// Reads block `i` of a unit of `file_bytes` bytes.
    pub(super) fn read_block(self, unit: &[u8], i: usize) -> QuantBlock {
        let plain = |quanta| QuantBlock { quanta, scales: [1; 2], offset: 1 };
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

/// Splits sixteen bytes into 32 nibbles: all low halves, then all high halves.
fn nibbles(bytes: &[u8]) -> [u8; BLOCK] {
    std::array::from_fn(|i| nibble(bytes[i % 16], i / 16))
}

/// Low (0) or high (1) half of a byte.
fn nibble(byte: u8, half: usize) -> u8 {
    byte >> (4 * half) & 15
}

/// Reads four bytes with the fifth bits of 32 weights, followed by the nibbles.
fn five_bits(bytes: &[u8]) -> [u8; BLOCK] {
    let low = nibbles(&bytes[4..]);
    std::array::from_fn(|i| low[i] | (bytes[i / 8] >> (i % 8) & 1) << 4)
}

/// Reads the factors of the scale and the offset of block `i`, six bits each, from twelve bytes.
fn read_factors(bytes: &[u8], i: usize) -> [i8; 2] {
    let [scale, offset] = if i < 4 {
        [bytes[i] & 63, bytes[i + 4] & 63]
    } else {
        [bytes[i + 4] & 15 | bytes[i - 4] >> 6 << 4, bytes[i + 4] >> 4 | bytes[i] >> 6 << 4]
    };
    [scale as i8, offset as i8]
}

/// Reads twelve bytes of factors, followed by the nibbles of pairs of blocks.
fn read_q4k(bytes: &[u8], block: usize) -> QuantBlock {
    let [scale, offset] = read_factors(bytes, block);
    let pair = &bytes[12 + block / 2 * BLOCK..][..BLOCK];
    let quanta = std::array::from_fn(|i| nibble(pair[i], block % 2));
    QuantBlock { quanta, scales: [scale; 2], offset }
}

/// Reads twelve bytes of factors, the fifth bits of weight `i` of each block in byte `i`, and the
/// nibbles.
fn read_q5k(bytes: &[u8], block: usize) -> QuantBlock {
    let [scale, offset] = read_factors(bytes, block);
    let (high, rest) = (&bytes[12..12 + BLOCK], &bytes[12 + BLOCK..]);
    let pair = &rest[block / 2 * BLOCK..][..BLOCK];
    let quantum = |i: usize| nibble(pair[i], block % 2) | (high[i] >> block & 1) << 4;
    QuantBlock { quanta: std::array::from_fn(quantum), scales: [scale; 2], offset }
}

/// Reads the low nibbles of 256 weights, their two high bits, and sixteen factors. In each half of
/// the weights, blocks 0 and 2 share bytes of nibbles, as do blocks 1 and 3, and all four share the
/// bytes of high bits.
fn read_q6k(bytes: &[u8], block: usize) -> QuantBlock {
    let (half, block_in_half) = (block / 4, block % 4);
    let low = &bytes[half * 64 + block_in_half % 2 * BLOCK..][..BLOCK];
    let high = &bytes[128 + half * BLOCK..][..BLOCK];
    let quantum =
        |i: usize| nibble(low[i], block_in_half / 2) | (high[i] >> (2 * block_in_half) & 3) << 4;
    let factors = [bytes[192 + 2 * block], bytes[193 + 2 * block]];
    QuantBlock {
        quanta: std::array::from_fn(quantum),
        scales: factors.map(|byte| byte as i8),
        offset: 1,
    }
}
