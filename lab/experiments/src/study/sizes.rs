//! Sample sizes that a study compares.

use crate::{Error, Result};

/// Returns the distinct sizes, ascending.
///
/// # Errors
/// If there are no sizes, or a size is below `least`.
pub(super) fn sort_sizes(sizes: &[usize], least: usize) -> Result<Vec<usize>> {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.first().is_some_and(|&first| first >= least) {
        return Ok(sizes);
    }
    let reason = format!("expected sizes of at least {least}");
    Err(Error::Setting { field: "sizes", reason })
}

/// Returns the number of sizes that were measured on every row. Sizes are ascending, and each row
/// has results for the smallest ones.
///
/// # Errors
/// If some row has no result.
pub(super) fn count_common<T>(sizes: &[usize], rows: &[Vec<T>]) -> Result<usize> {
    match rows.iter().map(Vec::len).min() {
        Some(fit) if fit > 0 => Ok(fit),
        _ => {
            let least = sizes[0];
            let reason = format!(
                "some row has no residual of more than {least} tokens; expected a smaller size"
            );
            Err(Error::Setting { field: "sizes", reason })
        }
    }
}
