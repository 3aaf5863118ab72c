//! Numbers on a device.

use std::marker::PhantomData;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Device;

/// Numbers in memory of a device, `[len]`.
#[derive(Debug)]
pub struct Array<D: Device, T> {
    device: D,
    memory: D::Memory,
    len: usize,
    of: PhantomData<T>,
}

impl<D: Device, T: Copy + FromBytes + IntoBytes + Immutable> Array<D, T> {
    /// So many zeros.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn zeros(device: &D, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        let memory = device.allocate(bytes)?;
        Ok(Self { device: device.clone(), memory, len, of: PhantomData })
    }

    /// The same numbers.
    ///
    /// # Errors
    /// If there is no memory, or the device is lost.
    pub fn new(device: &D, numbers: &[T]) -> Result<Self> {
        let array = Self::zeros(device, numbers.len())?;
        array.write(numbers, 0)?;
        Ok(array)
    }

    /// Copies numbers to a place in the array.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If they do not fit there.
    pub fn write(&self, numbers: &[T], at: usize) -> Result<()> {
        assert!(
            at + numbers.len() <= self.len,
            "{} numbers at {at} of {}",
            numbers.len(),
            self.len
        );
        self.device.write(numbers.as_bytes(), &self.memory, at * size_of::<T>())
    }

    /// All numbers, after the work asked for so far.
    ///
    /// # Errors
    /// If the device is lost, or that work has failed.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut numbers = vec![T::new_zeroed(); self.len];
        self.device.read(&self.memory, 0, numbers.as_mut_bytes())?;
        Ok(numbers)
    }

    /// How many numbers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are, to kernels.
    pub fn address(&self) -> u64 {
        self.device.address(&self.memory)
    }
}
