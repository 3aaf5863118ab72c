//! Sizes of samples that a study compares.

use crate::{Error, Result};

/// Sizes in ascending order, each once.
///
/// # Errors
/// If there are none, or one is below `least`.
pub(super) fn ascending(sizes: &[usize], least: usize) -> Result<Vec<usize>> {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.first().is_some_and(|&first| first >= least) {
        return Ok(sizes);
    }
    let reason = format!("expected sizes of at least {least}, between commas");
    Err(Error::Setting { field: "sizes", reason })
}

/// How many of the sizes, ascending, were measured on every row; each row measured the first ones.
///
/// # Errors
/// If not even the first was.
pub(super) fn common<T>(sizes: &[usize], rows: &[Vec<T>]) -> Result<usize> {
    match rows.iter().map(Vec::len).min() {
        Some(fit) if fit > 0 => Ok(fit),
        _ => {
            let least = sizes[0];
            let reason = format!("{least} tokens are all that is left of some row; expected fewer");
            Err(Error::Setting { field: "sizes", reason })
        }
    }
}
