//! Time of day, as the API reports it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the number of seconds since 1970, or 0 if the clock is set to an earlier time.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
