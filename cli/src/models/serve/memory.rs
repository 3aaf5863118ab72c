//! Memory of an idle server.

use libmimalloc_sys::mi_collect;

/// Returns freed memory of the calling thread and of rayon's threads to the operating system.
/// Without it, the allocator keeps the memory for the next request.
pub(super) fn release_memory() {
    rayon::broadcast(|_| collect());
    collect();
}

#[allow(unsafe_code)]
fn collect() {
    // SAFETY: the function has no requirements. It visits the calling thread's heap, and unused
    // memory that all threads share.
    unsafe { mi_collect(true) }
}
