//! Memory of the emulated device, which is memory of the host.
#![allow(unsafe_code, reason = "kernels access the memory by address")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use vattention_core::{Error, Result};

/// Alignment of a device's memory.
const ALIGNMENT: usize = 256;

/// Zeroed memory at a multiple of 256.
#[derive(Debug)]
pub struct EmulatorMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is plain bytes, bound to no thread; callers order concurrent accesses, as on a
// device.
unsafe impl Send for EmulatorMemory {}
// SAFETY: as above.
unsafe impl Sync for EmulatorMemory {}

impl EmulatorMemory {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let out_of_memory = || Error::Memory { bytes };
        let layout = layout(bytes).ok_or_else(out_of_memory)?;
        // SAFETY: the layout is of at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn write(&self, from: &[u8], at: usize) {
        self.check(at, from.len());
        // SAFETY: `check` ensures that the range is valid, and nothing else borrows the bytes.
        unsafe { self.start.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: `check` ensures that the range is valid, and nothing else borrows the bytes.
        unsafe { self.start.as_ptr().add(at).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }

    fn check(&self, at: usize, bytes: usize) {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {at} of {}", self.bytes);
    }
}

impl Drop for EmulatorMemory {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.bytes) {
            // SAFETY: the memory was allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}
