//! Hash codes of tokens, on the device.

use vattention_core::Result;

use super::Array;
use crate::Device;

/// Tokens that a thread of `score.cu` reads in one vector load.
pub(super) const TOKENS_OF_THREAD: usize = 4;

/// Hash codes of tokens, with memory for more.
#[derive(Debug)]
pub struct DeviceCodes<D: Device> {
    /// Word 0 of all codes, then word 1, and so on, `[words, capacity]`.
    packed: Array<D, u32>,
    bits: usize,
    capacity: usize,
}

impl<D: Device> DeviceCodes<D> {
    /// Allocates codes of `bits` bits for `tokens` tokens.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(device: &D, bits: usize, tokens: usize) -> Result<Self> {
        let capacity = padded_capacity(tokens);
        let packed = Array::zeros(device, bits.div_ceil(32) * capacity)?;
        Ok(Self { packed, bits, capacity })
    }

    /// Writes one word of the codes of the tokens from `first` on. Bits beyond those of a code must
    /// be 0.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no such word, or the tokens exceed the capacity.
    pub fn write(&self, word: usize, first: usize, codes: &[u32]) -> Result<()> {
        assert!(first + codes.len() <= self.capacity, "room for {} codes", self.capacity);
        self.packed.write(codes, word * self.capacity + first)
    }

    /// Returns all words, `[words, capacity]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<u32>> {
        self.packed.read()
    }

    /// Number of bits of a code.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Number of codes for which there is memory, a multiple of 4.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that the codes of `tokens` tokens take.
    pub(crate) fn bytes_of(&self, tokens: usize) -> usize {
        tokens * self.bits.div_ceil(32) * size_of::<u32>()
    }

    /// Address of the codes, for [`ScoreCodes`](super::ScoreCodes).
    pub(crate) fn address(&self) -> u64 {
        self.packed.address()
    }

    /// Memory of the codes, for work to share.
    pub(super) fn packed(&self) -> &Array<D, u32> {
        &self.packed
    }
}

/// Capacity for `tokens` tokens, rounded up so that kernels read whole vectors.
pub(super) fn padded_capacity(tokens: usize) -> usize {
    tokens.next_multiple_of(TOKENS_OF_THREAD)
}
