//! Fetching of memory into the cache before it is needed.

/// Size of a cache line in bytes.
#[cfg(target_arch = "x86_64")]
pub(crate) const LINE: usize = 64;

/// Fetches numbers into the cache without waiting for them. Does nothing on machines other than
/// x86-64.
#[inline(always)]
pub fn prefetch<T>(numbers: &[T]) {
    prefetch_after(numbers, 0);
}

/// Fetches as many bytes as `numbers` have, from `distance` bytes after their first one on, like
/// [`prefetch`]. The address may be beyond any allocation.
#[inline(always)]
pub fn prefetch_after<T>(numbers: &[T], distance: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first = numbers.as_ptr().wrapping_byte_add(distance);
        for offset in (0..size_of_val(numbers)).step_by(LINE) {
            #[allow(unsafe_code, reason = "callers need not be compiled for SSE expressly")]
            // SAFETY: SSE is part of x86_64, and a prefetch reads nothing: any address is valid.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_byte_add(offset).cast());
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (numbers, distance);
}
