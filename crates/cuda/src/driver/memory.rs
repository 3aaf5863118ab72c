//! Memory that a GPU reads: its own, or of the host.

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
        /// What the device calls it.
        address: u64,
    },
}

impl DriverMemory {
    /// Zeros in memory of the device.
    pub(super) fn on_device(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, DriverError> {
        let place = MemoryPlace::Device(Mutex::new(stream.alloc_zeros(bytes)?));
        Ok(Self { stream: stream.clone(), place })
    }

    /// Zeros in memory of the host, page-locked and mapped. Not write-combined: the host reads it
    /// when a sequence forks.
    pub(super) fn on_host(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self, DriverError> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: it is filled before anybody reads it.
        let mut pinned = unsafe { stream.context().alloc_pinned_with_flags::<u8>(bytes, flags) }?;
        pinned.as_mut_slice()?.fill(0);
        let mut address = 0;
        let start = pinned.as_mut_ptr()?.cast();
        // SAFETY: it was allocated with a place for the device.
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

    /// Copies bytes there. They are the caller's again once this returns.
    pub(super) fn write(&self, bytes: &[u8], at: usize) -> Result<(), DriverError> {
        let range = at..at + bytes.len();
        match &self.place {
            MemoryPlace::Device(slice) => {
                self.stream.memcpy_htod(bytes, &mut lock(slice).slice_mut(range))?;
                self.stream.synchronize()
            }
            MemoryPlace::Host { pinned, .. } => {
                // Kernels that were started before read what was there before.
                self.stream.synchronize()?;
                lock(pinned).as_mut_slice()?[range].copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Copies bytes from there, after all work before.
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
    /// Frees it in the right context, whichever thread this is, and after the work that reads it. If
    /// there is no context, nothing is left to be freed. Binding reports what has failed before
    /// instead, once: that is kept for others.
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
