//! Prefetching of rows from memory.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Prefetches a row without waiting for it.
#[inline(always)]
#[allow(unsafe_code, reason = "callers need not be compiled for SSE expressly")]
pub(super) fn prefetch<T>(row: &[T]) {
    for line in row.chunks(LINE / size_of::<T>()) {
        // SAFETY: SSE is part of x86_64, and a prefetch reads nothing: it is valid for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}
