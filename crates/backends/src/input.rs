//! Checks of input, before any state changes.

use half::f16;
use ndarray::{ArrayView1, ArrayView3};
use vattention_core::{
    Error, Result, RowsView, TokenClass, Tokens,
    step::{Element, MAX_MAGNITUDE},
};

/// Largest number of tokens: indices are u32, and the sampler's order needs a spare bit.
const MAX_TOKENS: usize = (1 << 31) - 1;

/// Checks the first and the last dimension of an array.
pub(crate) fn check_shape(name: &str, shape: &[usize], heads: usize, dim: usize) -> Result<()> {
    let expected = [heads, shape[1], dim];
    if shape == expected {
        return Ok(());
    }
    Err(Error::shape(name, format!("{expected:?}"), shape))
}

/// Checks that numbers are finite and that no magnitude exceeds `limit`.
pub(crate) fn check_numbers(tensor: &'static str, rows: RowsView<'_>, limit: f32) -> Result<()> {
    let above = match rows {
        RowsView::F32(rows) => first_above(&rows, limit),
        // `wide` turns infinity and NaN of f16 into finite numbers above the largest f16.
        RowsView::F16(rows) => first_above(&rows, limit.min(f16::MAX.to_f32())),
        RowsView::Bf16(rows) => first_above(&rows, limit),
    };
    above.map_or(Ok(()), |(index, value)| Err(Error::Number { tensor, index, value, limit }))
}

/// First number that is not finite or whose magnitude exceeds `limit`, with its index.
fn first_above<T: Element + Into<f32>>(
    rows: &ArrayView3<'_, T>,
    limit: f32,
) -> Option<(Vec<usize>, f32)> {
    // The comparison is false for NaN.
    let fits = |x: &T| x.wide().abs() <= limit;
    // The loop has no early exit, so that it can be vectorized.
    let row_fits = |row: ArrayView1<'_, T>| match row.as_slice() {
        Some(row) => row.iter().fold(true, |all, x| all & fits(x)),
        None => row.iter().all(fits),
    };
    if rows.rows().into_iter().all(row_fits) {
        return None;
    }
    let ((i, j, k), &x) = rows.indexed_iter().find(|(_, x)| !fits(x))?;
    Some((vec![i, j, k], x.into()))
}

/// Checks that the numbers of stored rows from `first` on are finite, and small enough to be
/// multiplied.
pub(crate) fn check_rows(tensor: &'static str, rows: &Tokens<'_>, first: usize) -> Result<()> {
    let limit = MAX_MAGNITUDE;
    let mut row = vec![0.0; rows.dim()];
    for token in first..rows.len() {
        rows.copy_row(token, &mut row);
        // The comparison is false for NaN.
        let fits = |x: &f32| x.abs() <= limit;
        // The loop has no early exit, so that it can be vectorized.
        if row.iter().fold(true, |all, x| all & fits(x)) {
            continue;
        }
        if let Some(i) = row.iter().position(|x| !fits(x)) {
            return Err(Error::Number { tensor, index: vec![token, i], value: row[i], limit });
        }
    }
    Ok(())
}

/// Checks that the numbers of keys and values are equal, and that a sequence of `held` tokens has
/// room for them.
pub(crate) fn check_lengths(keys: usize, values: usize, held: usize) -> Result<()> {
    if keys != values {
        return Err(Error::shape("values", format!("{keys}, one per key"), values));
    }
    if held + keys > MAX_TOKENS {
        return Err(Error::shape("tokens", format!("at most {MAX_TOKENS}"), held + keys));
    }
    Ok(())
}

/// Checks that there is a class per token, if there are classes or the selector `needed_by` needs
/// them.
pub(crate) fn check_classes(
    needed_by: Option<&str>,
    classes: Option<&[TokenClass]>,
    tokens: usize,
) -> Result<()> {
    match (classes, needed_by) {
        (Some(classes), _) if classes.len() != tokens => {
            Err(Error::shape("classes", format!("{tokens}, one per token"), classes.len()))
        }
        (None, Some(selector)) => Err(Error::Classes { selector: selector.into() }),
        _ => Ok(()),
    }
}

/// Returns the number of visible tokens of each query, after checking that it is between 1 and
/// `held`. Without `visible`, all `held` tokens are visible to all queries.
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
