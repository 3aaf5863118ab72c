//! What is checked before anything changes.

use ndarray::{ArrayView1, ArrayView3};
use vattention_core::{Error, MAX_MAGNITUDE, Result, Storage};

/// Tokens are numbered by u32, and the sampler's order needs a bit to spare.
const MAX_TOKENS: usize = (1 << 31) - 1;

/// Refuses an array whose first or last dimension is not as expected.
pub(crate) fn check_shape(
    name: &str,
    array: &ArrayView3<'_, f32>,
    heads: usize,
    dim: usize,
) -> Result<()> {
    let (got_heads, count, got_dim) = array.dim();
    if got_heads == heads && got_dim == dim {
        return Ok(());
    }
    let expected = format!("[{heads}, {count}, {dim}]");
    Err(Error::shape(name, expected, array.shape()))
}

/// Refuses numbers that are not finite, or of a magnitude above `limit`.
pub(crate) fn check_numbers(
    tensor: &'static str,
    array: &ArrayView3<'_, f32>,
    limit: f32,
) -> Result<()> {
    // Not of a NaN.
    let fits = |x: &f32| x.abs() <= limit;
    // A row is looked at to its end, which vectors can do.
    let row_fits = |row: ArrayView1<'_, f32>| match row.as_slice() {
        Some(row) => row.iter().fold(true, |all, x| all & fits(x)),
        None => row.iter().all(fits),
    };
    if array.rows().into_iter().all(row_fits) {
        return Ok(());
    }
    let bad = array.indexed_iter().find(|(_, x)| !fits(x));
    bad.map_or(Ok(()), |((i, j, k), &value)| {
        Err(Error::Number { tensor, index: vec![i, j, k], value, limit })
    })
}

/// The largest magnitude that can be stored.
pub(crate) fn largest(storage: Storage) -> f32 {
    match storage {
        Storage::F32 | Storage::Bf16 => MAX_MAGNITUDE,
        Storage::F16 => half::f16::MAX.to_f32(),
    }
}

/// Refuses keys and values that differ in length or would not fit.
pub(crate) fn check_lengths(keys: usize, values: usize, held: usize) -> Result<()> {
    if keys != values {
        return Err(Error::shape("values", format!("{keys} tokens, as many as keys"), values));
    }
    if held + keys > MAX_TOKENS {
        return Err(Error::shape("tokens", format!("at most {MAX_TOKENS}"), held + keys));
    }
    Ok(())
}

/// The causal limits of `queries` queries over `held` tokens.
pub(crate) fn limits(visible: Option<&[usize]>, queries: usize, held: usize) -> Result<Vec<usize>> {
    let Some(visible) = visible else {
        if held == 0 && queries > 0 {
            return Err(Error::shape("tokens", "at least 1 before a query", 0));
        }
        return Ok(vec![held; queries]);
    };
    if visible.len() != queries {
        return Err(Error::shape("visible", format!("{queries}, one per query"), visible.len()));
    }
    match visible.iter().position(|&limit| limit == 0 || limit > held) {
        None => Ok(visible.to_vec()),
        Some(i) => Err(Error::shape(
            format!("visible[{i}]"),
            format!("1 to {held} (the tokens appended)"),
            visible[i],
        )),
    }
}
