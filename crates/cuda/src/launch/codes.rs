//! Hash codes of tokens, on the device.

use vattention_core::Result;

use super::Array;
use crate::Device;

/// Tokens that a thread of `score.cu` reads together.
pub(super) const TOKENS_OF_THREAD: usize = 4;

/// The codes of tokens, with room for more.
#[derive(Debug)]
pub struct DeviceCodes<D: Device> {
    /// The first words of all codes, then the second words, and so on, `[words, capacity]`.
    packed: Array<D, u32>,
    bits: usize,
    capacity: usize,
}

impl<D: Device> DeviceCodes<D> {
    /// Room for codes of `bits` bits of `tokens` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, bits: usize, tokens: usize) -> Result<Self> {
        let capacity = room(tokens);
        let packed = Array::zeros(device, bits.div_ceil(32) * capacity)?;
        Ok(Self { packed, bits, capacity })
    }

    /// Writes one word of each code of some tokens from `first` on. Bits beyond those of a code are 0.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no such word, or no room.
    pub fn write(&self, word: usize, first: usize, codes: &[u32]) -> Result<()> {
        assert!(first + codes.len() <= self.capacity, "room for {} codes", self.capacity);
        self.packed.write(codes, word * self.capacity + first)
    }

    /// All words, `[words, capacity]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<u32>> {
        self.packed.read()
    }

    /// How many bits each has.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// How many there is room for: a multiple of 4.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes that the codes of `tokens` tokens take.
    pub(crate) fn bytes_of(&self, tokens: usize) -> usize {
        tokens * self.bits.div_ceil(32) * size_of::<u32>()
    }

    /// Where they are, for [`ScoreCodes`](super::ScoreCodes).
    pub(crate) fn address(&self) -> u64 {
        self.packed.address()
    }

    /// The words, to be kept.
    pub(super) fn packed(&self) -> &Array<D, u32> {
        &self.packed
    }
}

/// The capacity that `tokens` tokens need, as kernels read codes.
pub(super) fn room(tokens: usize) -> usize {
    tokens.next_multiple_of(TOKENS_OF_THREAD)
}
