//! Numbers of checkpoints.

use std::fmt::Display;

/// A number that may be none.
pub(crate) trait StoredNumber: Copy + Display {
    fn is_finite(self) -> bool;
}

impl StoredNumber for f32 {
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

impl StoredNumber for half::bf16 {
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

/// Numbers, if all are finite; else what is to be said behind the name of their tensor.
pub(crate) fn finite<T: StoredNumber>(numbers: Vec<T>) -> Result<Vec<T>, String> {
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(numbers),
        Some(i) => Err(format!(": number {i} is {}; expected finite numbers", numbers[i])),
    }
}
