//! Numbers of checkpoints, checked to be finite.

use std::fmt::Display;

/// Number type of a checkpoint that can hold infinities and NaN.
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

/// Returns the numbers if all are finite; otherwise an error to append to the name of their tensor.
pub(crate) fn finite<T: StoredNumber>(numbers: Vec<T>) -> Result<Vec<T>, String> {
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(numbers),
        Some(i) => Err(format!(": number {i} is {}; expected finite numbers", numbers[i])),
    }
}
