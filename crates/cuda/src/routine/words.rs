//! Numbers of several types in one array, so that they are copied at once.

use std::marker::PhantomData;
use std::ops::Range;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Device;
use crate::launch::Array;

/// A place for values of one type, in words of 4 bytes.
#[derive(Debug)]
pub(super) struct Place<T> {
    words: Range<usize>,
    of: PhantomData<T>,
}

/// Places one after the other.
#[derive(Debug, Default)]
pub(super) struct Places {
    words: usize,
}

impl Places {
    /// One more, for `len` numbers, at a multiple of 8 bytes.
    pub(super) fn add<T>(&mut self, len: usize) -> Place<T> {
        let start = self.words.next_multiple_of(2);
        self.words = start + (len * size_of::<T>()).div_ceil(4);
        Place { words: start..self.words, of: PhantomData }
    }

    /// Zeros in all of them, on a device.
    pub(super) fn array<D: Device>(&self, device: &D) -> Result<Array<D, u32>> {
        Array::zeros(device, self.words)
    }

    /// Zeros in all of them, here.
    pub(super) fn zeros(&self) -> Vec<u32> {
        vec![0; self.words]
    }
}

impl<T: Copy + FromBytes + IntoBytes + Immutable> Place<T> {
    /// Where it is on a device.
    pub(super) fn of<D: Device>(&self, all: &Array<D, u32>) -> Array<D, T> {
        all.part(self.words.clone()).cast()
    }

    /// Puts numbers there.
    ///
    /// # Panics
    /// If they are more or fewer than there is place for.
    pub(super) fn put(&self, numbers: &[T], all: &mut [u32]) {
        all[self.words.clone()].as_mut_bytes().copy_from_slice(numbers.as_bytes());
    }

    /// The numbers there.
    pub(super) fn get(&self, all: &[u32]) -> Vec<T> {
        let words = &all[self.words.clone()];
        let mut numbers = vec![T::new_zeroed(); size_of_val(words) / size_of::<T>()];
        numbers.as_mut_bytes().copy_from_slice(words.as_bytes());
        numbers
    }
}
