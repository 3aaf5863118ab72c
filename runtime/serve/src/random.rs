//! Random numbers for ids, and for requests without a seed.

/// Returns a random number from the operating system.
pub(crate) fn draw_number() -> u64 {
    // Without random numbers from the system, the server still works, but ids may repeat after a
    // restart.
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, Hasher};
        std::hash::RandomState::new().build_hasher().finish()
    })
}
