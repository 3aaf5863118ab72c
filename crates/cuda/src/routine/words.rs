//! Numbers of several types in one array, so that one copy moves all of them.

use std::marker::PhantomData;
use std::ops::Range;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Device;
use crate::launch::Array;

/// Place of values of one type, as a range of 4-byte words.
#[derive(Debug)]
pub(super) struct WordSlot<T> {
    words: Range<usize>,
    value: PhantomData<T>,
}

/// Layout of consecutive places.
#[derive(Debug, Default)]
pub(super) struct WordSlots {
    words: usize,
}

impl WordSlots {
    /// Adds a place for `len` numbers, at a multiple of 8 bytes.
    pub(super) fn add<T>(&mut self, len: usize) -> WordSlot<T> {
        let start = self.words.next_multiple_of(2);
        self.words = start + (len * size_of::<T>()).div_ceil(4);
        WordSlot { words: start..self.words, value: PhantomData }
    }

    /// Allocates zeros for all places on a device.
    pub(super) fn array<D: Device>(&self, device: &D) -> Result<Array<D, u32>> {
        Array::zeros(device, self.words)
    }

    /// Returns zeros for all places on the host.
    pub(super) fn zeros(&self) -> Vec<u32> {
        vec![0; self.words]
    }
}

impl<T: Copy + FromBytes + IntoBytes + Immutable> WordSlot<T> {
    /// View of the place on a device.
    pub(super) fn view<D: Device>(&self, all: &Array<D, u32>) -> Array<D, T> {
        all.part(self.words.clone()).cast()
    }

    /// Writes numbers to the place.
    ///
    /// # Panics
    /// If the number of numbers differs from that of the place.
    pub(super) fn put(&self, numbers: &[T], all: &mut [u32]) {
        all[self.words.clone()].as_mut_bytes().copy_from_slice(numbers.as_bytes());
    }

    /// Reads the numbers of the place.
    pub(super) fn get(&self, all: &[u32]) -> Vec<T> {
        let words = &all[self.words.clone()];
        let mut numbers = vec![T::new_zeroed(); size_of_val(words) / size_of::<T>()];
        numbers.as_mut_bytes().copy_from_slice(words.as_bytes());
        numbers
    }
}
