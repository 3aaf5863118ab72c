//! Numbers on a device.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Device;

/// Numbers in memory of a device, `[len]`. A clone is the same numbers in the same place.
#[derive(Debug)]
pub struct Array<D: Device, T> {
    device: D,
    pub(super) memory: Arc<D::Memory>,
    /// In bytes.
    start: usize,
    len: usize,
    of: PhantomData<T>,
}

impl<D: Device, T> Array<D, T> {
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
        self.device.address(&self.memory) + self.start as u64
    }

    /// The numbers at some places, where they are.
    ///
    /// # Panics
    /// If the range ends past the array.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        let start = self.start + range.start * size_of::<T>();
        Self { start, len: range.len(), ..self.clone() }
    }
}

impl<D: Device, T: Copy + FromBytes + IntoBytes + Immutable> Array<D, T> {
    /// The same bytes as elements of another type.
    ///
    /// # Panics
    /// If they are no whole number of them, or begin where none may.
    #[must_use]
    pub fn cast<U: Copy + FromBytes + IntoBytes + Immutable>(&self) -> Array<D, U> {
        let bytes = self.len * size_of::<T>();
        let fits =
            bytes.is_multiple_of(size_of::<U>()) && self.start.is_multiple_of(align_of::<U>());
        assert!(fits, "{bytes} bytes at {}", self.start);
        Array {
            device: self.device.clone(),
            memory: self.memory.clone(),
            start: self.start,
            len: bytes / size_of::<U>(),
            of: PhantomData,
        }
    }
}

impl<D: Device, T> Clone for Array<D, T> {
    fn clone(&self) -> Self {
        Self { device: self.device.clone(), memory: self.memory.clone(), ..*self }
    }
}

impl<D: Device, T: Copy + FromBytes + IntoBytes + Immutable> Array<D, T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn zeros(device: &D, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        Ok(Self::within(device, device.allocate(bytes)?, len))
    }

    /// `len` zeros in memory of the host, from which the device reads them over the bus.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn zeros_on_host(device: &D, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        Ok(Self::within(device, device.allocate_on_host(bytes)?, len))
    }

    fn within(device: &D, memory: D::Memory, len: usize) -> Self {
        let memory = Arc::new(memory);
        Self { device: device.clone(), memory, start: 0, len, of: PhantomData }
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
        if numbers.is_empty() {
            return Ok(());
        }
        self.device.write(numbers.as_bytes(), &self.memory, self.start + at * size_of::<T>())
    }

    /// All numbers, after the work asked for so far.
    ///
    /// # Errors
    /// If the device is lost, or that work has failed.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut numbers = vec![T::new_zeroed(); self.len];
        self.device.read(&self.memory, self.start, numbers.as_mut_bytes())?;
        Ok(numbers)
    }
}
