//! Prefetching of rows from memory.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// Prefetches the cache line of an element of a row, if the row has it, into the second-level
/// cache, or into the first-level cache if it will be used `soon`.
#[inline(always)]
#[allow(unsafe_code, reason = "callers need not be compiled for SSE expressly")]
pub(super) fn prefetch_line<T>(row: &[T], element: usize, soon: bool) {
    let Some(element) = row.get(element) else { return };
    let address = std::ptr::from_ref(element).cast();
    // SAFETY: SSE is part of x86_64, and a prefetch reads nothing: it is valid for any address.
    unsafe {
        if soon {
            _mm_prefetch::<_MM_HINT_T0>(address);
        } else {
            _mm_prefetch::<_MM_HINT_T1>(address);
        }
    }
}

/// Prefetches a row without waiting for it.
#[inline(always)]
#[allow(unsafe_code, reason = "callers need not be compiled for SSE expressly")]
pub(super) fn prefetch<T>(row: &[T]) {
    for line in row.chunks(LINE / size_of::<T>()) {
        // SAFETY: SSE is part of x86_64, and a prefetch reads nothing: it is valid for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}
