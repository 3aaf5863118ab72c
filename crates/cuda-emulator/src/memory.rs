//! Memory of the emulated device: the host's.
#![allow(unsafe_code, reason = "kernels write to it through bare addresses")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use vattention_core::{Error, Result};

/// What a device aligns memory to.
const ALIGNMENT: usize = 256;

/// Bytes at a multiple of 256, zero at first.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is bytes, without a thread of their own; what reads and writes them at once is the
// callers' to order, as on a device.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
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
        // SAFETY: `check` has found that the bytes are there, and nothing else borrows them.
        unsafe { self.start.as_ptr().add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: `check` has found that the bytes are there, and nothing else borrows them.
        unsafe { self.start.as_ptr().add(at).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }

    fn check(&self, at: usize, bytes: usize) {
        let fits = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {at} of {}", self.bytes);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.bytes) {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()
}
