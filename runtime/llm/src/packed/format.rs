//! Formats of GGUF's blocks of quantised weights.

use half::f16;

use super::codebook::{E2M1, E2M1_ZERO, IQ4, IQ4_ZERO};
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
    /// `scale · t[q]`, with four-bit `q` and the signed integers `t` of [`IQ4`].
    Iq4Nl,
    /// `scale · s · t[q]`, with the `q` and `t` of `Iq4Nl`, and a six-bit `s` for each block.
    Iq4Xs,
    /// `2^(e - 128) · t[q]`, with four-bit `q`, the signed integers `t` of [`E2M1`], and an
    /// eight-bit `e`.
    Mxfp4,
}

/// Block of quantised weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuantBlock {
    /// Unsigned integers, of which [`QuantFormat::zero`] represents zero, or numbers of the
    /// integers of a codebook.
    pub(super) quanta: [u8; BLOCK],
    /// Factors of the scale for each half; 1 if the format has none.
    pub(super) scales: [i8; 2],
    /// Factor of the offset.
    pub(super) offset: i8,
}

impl QuantFormat {
    /// Number of blocks that share a scale: a unit.
    pub(super) const fn unit_blocks(self) -> usize {
        if self.is_nested() { SUPER_BLOCK } else { 1 }
    }

    /// Number of weights of a unit.
    pub(crate) const fn unit_weights(self) -> usize {
        self.unit_blocks() * BLOCK
    }

    /// Bytes of a unit in a file.
    pub(crate) const fn file_bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// Bytes that matrices `[.., outputs, inputs]` take in memory.
    pub(crate) fn memory_bytes(self, dims: &[usize]) -> u64 {
        let quanta = self.lines() * 4;
        let factors = self.scale_factors() + self.offset_factors();
        let numbers = match (self.has_exponents(), self.has_offsets()) {
            (true, _) => 1,
            (_, false) => 2,
            (_, true) => 4,
        };
        let unit = self.unit_blocks() * (quanta + factors) + numbers;
        let units = dims[dims.len() - 1] / BLOCK / self.unit_blocks();
        let outputs = dims[dims.len() - 2].next_multiple_of(LANES);
        let count: u64 = dims[..dims.len() - 2].iter().map(|&size| size as u64).product();
        count * (outputs * units * unit) as u64
    }

    /// Unsigned integers that four-bit numbers stand for, if they are not the numbers themselves.
    pub(super) const fn codebook(self) -> Option<&'static [u8; 16]> {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Some(&IQ4),
            Self::Mxfp4 => Some(&E2M1),
            _ => None,
        }
    }

    /// Integer that represents a weight of zero, before the offset.
    pub(super) const fn zero(self) -> u8 {
        match self {
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => 0,
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q6K => 32,
            Self::Q8_0 => 128,
            Self::Iq4Nl | Self::Iq4Xs => IQ4_ZERO,
            Self::Mxfp4 => E2M1_ZERO,
        }
    }

    /// Returns true if scales are powers of two, stored as exponents.
    pub(super) const fn has_exponents(self) -> bool {
        matches!(self, Self::Mxfp4)
    }

    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K)
    }

    /// Number of bits of an integer beyond four; four for whole bytes.
    pub(super) const fn high_bits(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K | Self::Iq4Nl | Self::Iq4Xs | Self::Mxfp4 => 0,
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
            Self::Q4K | Self::Q5K | Self::Iq4Xs => 1,
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

    /// Reads the scale and offset of a unit of `file_bytes` bytes; a number that the format lacks
    /// is zero.
    pub(super) fn read_numbers(self, unit: &[u8]) -> [f16; 2] {
        let number = |at: usize| f16::from_le_bytes([unit[at], unit[at + 1]]);
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs => {
                [number(0), f16::ZERO]
            }
            Self::Q4_1 | Self::Q5_1 => [number(0), number(2)],
            Self::Q4K | Self::Q5K => [number(0), -number(2)],
            Self::Q6K => [number(208), f16::ZERO],
            Self::Mxfp4 => [f16::ZERO; 2],
        }
    }

    /// Reads block `i` of a unit of `file_bytes` bytes.
    pub(super) fn read_block(self, unit: &[u8], i: usize) -> QuantBlock {
        let plain = |quanta| QuantBlock { quanta, scales: [1; 2], offset: 1 };
        match self {
            Self::Q4_0 | Self::Iq4Nl => plain(nibbles(&unit[2..])),
            Self::Q4_1 => plain(nibbles(&unit[4..])),
            Self::Q5_0 => plain(five_bits(&unit[2..])),
            Self::Q5_1 => plain(five_bits(&unit[4..])),
            Self::Q8_0 => plain(std::array::from_fn(|i| unit[2 + i].wrapping_add(128))),
            Self::Q4K => read_q4k(&unit[4..], i),
            Self::Q5K => read_q5k(&unit[4..], i),
            Self::Q6K => read_q6k(unit, i),
            Self::Iq4Xs => read_iq4_xs(&unit[2..], i),
            Self::Mxfp4 => plain(nibbles(&unit[1..])),
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

/// Reads the two high bits of eight factors, their low nibbles, and the nibbles of the blocks.
fn read_iq4_xs(bytes: &[u8], block: usize) -> QuantBlock {
    let high = u16::from_le_bytes([bytes[0], bytes[1]]) >> (2 * block) & 3;
    let low = nibble(bytes[2 + block / 2], block % 2);
    let scale = (low | (high as u8) << 4) as i8 - 32;
    QuantBlock { quanta: nibbles(&bytes[6 + 16 * block..]), scales: [scale; 2], offset: 1 }
}
