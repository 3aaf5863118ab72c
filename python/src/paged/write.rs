//! New rows, which the library writes to the slots of a pool.

use std::ptr;

use numpy::ndarray::Array1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use vattention::backends::store;
use vattention::{Error, RowsView, Shape, Storage};

use super::pool::{Pool, PoolRows};
use super::table::PoolSize;
use crate::array::InputArray;
use crate::error::core;

/// Number of a slot that stands for no row, as for padding.
const NO_SLOT: i64 = -1;

/// Place of a row in a pool.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    block: usize,
    row: usize,
}

/// Reads `slot_mapping` `[new]`: row `slot % block` of block `slot / block`, or `None` for -1.
pub(super) fn parse_slots(
    slot_mapping: &Bound<'_, PyAny>,
    pool: &Pool<'_>,
) -> PyResult<Vec<Option<Slot>>> {
    let numbers: Array1<i64> = InputArray::new("slot_mapping", slot_mapping)?.integers("[new]")?;
    let PoolSize { blocks, block } = pool.size();
    let slots = blocks * block;
    let parse = |(i, &number): (usize, &i64)| {
        if number == NO_SLOT {
            return Ok(None);
        }
        let slot = usize::try_from(number).ok().filter(|&slot| slot < slots);
        let slot = slot.ok_or_else(|| {
            PyValueError::new_err(format!(
                "slot_mapping[{i}]: expected a slot of the pool, which has {slots}, or -1, \
                 got {number}"
            ))
        })?;
        Ok(Some(Slot { block: slot / block, row: slot % block }))
    };
    numbers.iter().enumerate().map(parse).collect()
}

/// Checks the shapes of keys and values for a slot mapping.
pub(super) fn check_new(
    keys: &[usize],
    values: &[usize],
    new: usize,
    shape: Shape,
) -> PyResult<()> {
    let Shape { kv_heads, head_dim, value_dim, .. } = shape;
    for (name, got, dim) in [("keys", keys, head_dim), ("values", values, value_dim)] {
        let expected = [kv_heads, new, dim];
        if got != expected {
            return Err(PyValueError::new_err(format!(
                "{name}: expected {expected:?}, a row for each slot, got {got:?}"
            )));
        }
    }
    Ok(())
}

/// Writes rows `[kv_heads, new, dim]` to their slots, rounded to the type of the pool, after
/// checking that each number can be stored.
///
/// # Safety
/// The rows of the pool are in memory to which the library may write.
#[allow(unsafe_code)]
pub(super) unsafe fn write_rows(
    keys: RowsView<'_>,
    values: RowsView<'_>,
    pool: &Pool<'_>,
    slots: &[Option<Slot>],
) -> PyResult<()> {
    let storage = pool.keys().storage();
    check_rows("keys", keys, slots, storage).map_err(core)?;
    check_rows("values", values, slots, storage).map_err(core)?;
    // SAFETY: the caller vouches for the memory.
    unsafe {
        write_to(keys, &pool.keys(), slots);
        write_to(values, &pool.values(), slots);
    }
    Ok(())
}

/// Checks that the numbers of rows that have a slot can be stored.
fn check_rows(
    tensor: &'static str,
    rows: RowsView<'_>,
    slots: &[Option<Slot>],
    storage: Storage,
) -> vattention::Result<()> {
    let limit = storage.largest();
    // The comparison is false for NaN.
    let fits = |x: &f32| x.abs() <= limit;
    for kv_head in 0..rows.shape()[0] {
        for (token, slot) in slots.iter().enumerate() {
            if slot.is_none() {
                continue;
            }
            let row = rows.index(kv_head).index(token).to_f32();
            if let Some(i) = row.iter().position(|x| !fits(x)) {
                let (index, value) = (vec![kv_head, token, i], row[i]);
                return Err(Error::Number { tensor, index, value, limit });
            }
        }
    }
    Ok(())
}

/// Writes rows to their slots.
///
/// # Safety
/// The rows of the pool are in memory to which the library may write.
#[allow(unsafe_code)]
unsafe fn write_to(rows: RowsView<'_>, pool: &PoolRows<'_>, slots: &[Option<Slot>]) {
    let storage = pool.storage();
    let mut stored = vec![0; storage.row_bytes(rows.shape()[2])];
    for kv_head in 0..rows.shape()[0] {
        for (token, slot) in slots.iter().enumerate() {
            let Some(Slot { block, row }) = *slot else { continue };
            store(storage, rows.index(kv_head).index(token), &mut stored);
            let place = pool.row_start(block, kv_head, row).cast_mut();
            // SAFETY: a row of the pool has this number of bytes, side by side, and the caller
            // vouches for the memory. `stored` is memory of its own.
            unsafe { ptr::copy_nonoverlapping(stored.as_ptr(), place, stored.len()) };
        }
    }
}
