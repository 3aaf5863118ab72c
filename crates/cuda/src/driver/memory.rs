//! Memory that a GPU reads: its own, or page-locked memory of the host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, PinnedHostSlice, sys};

/// Memory that a GPU reads. Kernels use it on one stream, in order.
#[derive(Debug)]
pub struct DriverMemory {
    stream: Arc<CudaStream>,
    place: MemoryPlace,
}

#[derive(Debug)]
enum MemoryPlace {
    Device(Mutex<CudaSlice<u8>>),
    Host {
        pinned: Mutex<PinnedHostSlice<u8>>,
        /// Address on the device.
        address: u64,
    },
}

impl DriverMemory {
    /// Allocates zeroed memory of the device.
    pub(super) fn on_device(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, DriverError> {
        let place = MemoryPlace::Device(Mutex::new(stream.alloc_zeros(bytes)?));
        Ok(Self { stream: stream.clone(), place })
    }

    /// Allocates zeroed memory of the host, page-locked and mapped. It is not write-combined,
    /// because the host reads it when a sequence forks.
    pub(super) fn on_host(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, DriverError> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the memory is filled before anything reads it.
        let mut pinned = unsafe { stream.context().alloc_pinned_with_flags::<u8>(bytes, flags) }?;
        pinned.as_mut_slice()?.fill(0);
        let mut address = 0;
        let start = pinned.as_mut_ptr()?.cast();
        // SAFETY: the memory was allocated as mapped to the device.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, start, 0) }.result()?;
        Ok(Self {
            stream: stream.clone(),
            place: MemoryPlace::Host { pinned: Mutex::new(pinned), address },
        })
    }

    pub(super) fn address(&self) -> u64 {
        match &self.place {
            MemoryPlace::Device(slice) => lock(slice).device_ptr(&self.stream).0,
            MemoryPlace::Host { address, .. } => *address,
        }
    }

    /// Copies bytes to offset `at`. The caller may reuse `bytes` once this returns.
    pub(super) fn write(&self, bytes: &[u8], at: usize) -> Result<(), DriverError> {
        let range = at..at + bytes.len();
        match &self.place {
            MemoryPlace::Device(slice) => {
                self.stream.memcpy_htod(bytes, &mut lock(slice).slice_mut(range))?;
                self.stream.synchronize()
            }
            MemoryPlace::Host { pinned, .. } => {
                // Kernels started earlier may still read the old bytes.
                self.stream.synchronize()?;
                lock(pinned).as_mut_slice()?[range].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies bytes from offset `at` once all earlier work has finished.
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), DriverError> {
        let range = at..at + bytes.len();
        match &self.place {
            MemoryPlace::Device(slice) => {
                self.stream.memcpy_dtoh(&lock(slice).slice(range), bytes)?;
                self.stream.synchronize()
            }
            MemoryPlace::Host { pinned, .. } => {
                self.stream.synchronize()?;
                bytes.copy_from_slice(&lock(pinned).as_slice()?[range]);
                Ok(())
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for DriverMemory {
    /// Frees the memory in its own context, on any thread, after the work that reads it. If
    /// the context no longer exists, the memory is free already. Binding the context returns an
    /// earlier error once, so the error is recorded again for the next caller.
    fn drop(&mut self) {
        let context = self.stream.context();
        if let Err(error) = context.bind_to_thread() {
            let _ = context.bind_to_thread();
            context.record_err::<()>(Err(error));
        }
        // The device's own memory is freed in the order of the stream.
        if let MemoryPlace::Host { .. } = self.place {
            context.record_err(self.stream.synchronize());
        }
    }
}
