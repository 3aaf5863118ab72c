//! Arrays of numbers on a device.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use vattention_core::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Device;

/// Numbers in memory of a device, `[len]`. A clone shares the memory.
#[derive(Debug)]
pub struct Array<D: Device, T> {
    device: D,
    pub(super) memory: Arc<D::Memory>,
    /// Offset in the memory, in bytes.
    start: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<D: Device, T> Array<D, T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first element as kernels see it.
    pub fn address(&self) -> u64 {
        self.device.address(&self.memory) + self.start as u64
    }

    /// Returns a view of the elements in a range.
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
    /// Returns a view of the same bytes as elements of another type.
    ///
    /// # Panics
    /// If the bytes are no whole number of elements, or are not aligned for them.
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
            element: PhantomData,
        }
    }
}

impl<D: Device, T> Clone for Array<D, T> {
    fn clone(&self) -> Self {
        Self { device: self.device.clone(), memory: self.memory.clone(), ..*self }
    }
}

impl<D: Device, T: Copy + FromBytes + IntoBytes + Immutable> Array<D, T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn zeros(device: &D, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        Ok(Self::within(device, device.allocate(bytes)?, len))
    }

    /// Allocates `len` zeros in memory of the host, which the device reads over the bus.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn zeros_on_host(device: &D, len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>()).max(1);
        Ok(Self::within(device, device.allocate_on_host(bytes)?, len))
    }

    fn within(device: &D, memory: D::Memory, len: usize) -> Self {
        let memory = Arc::new(memory);
        Self { device: device.clone(), memory, start: 0, len, element: PhantomData }
    }

    /// Copies numbers to new memory of the device.
    ///
    /// # Errors
    /// If there is no memory, or the device is lost.
    pub fn new(device: &D, numbers: &[T]) -> Result<Self> {
        let array = Self::zeros(device, numbers.len())?;
        array.write(numbers, 0)?;
        Ok(array)
    }

    /// Copies numbers to the elements from `at` on.
    ///
    /// # Errors
    /// If the device is lost.
    ///
    /// # Panics
    /// If the numbers do not fit there.
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

    /// Returns all elements, after all work started so far.
    ///
    /// # Errors
    /// If the device is lost, or that work has failed.
    pub fn read(&self) -> Result<Vec<T>> {
        let mut numbers = vec![T::new_zeroed(); self.len];
        self.device.read(&self.memory, self.start, numbers.as_mut_bytes())?;
        Ok(numbers)
    }
}
