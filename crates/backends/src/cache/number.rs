//! Number types that a cache can store.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::{ArrayView1, ArrayViewMut1, Ix1};
use vattention_core::{
    RowsView, Storage,
    step::{Element, SCALE_BYTES, round_row},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::layout::CacheRow;

/// An [`Element`] of the rows of a cache, for which every bit pattern is valid.
pub(super) trait RowElement:
    'static + Element + FromBytes + IntoBytes + KnownLayout + Immutable
{
    /// Writes the key and the value of a token to its row, rounded to this type.
    fn store_token(
        layout: &CacheRow,
        key: RowsView<'_, Ix1>,
        value: RowsView<'_, Ix1>,
        row: &mut [Self],
    );
}

/// A float that f32 can be rounded to.
pub(super) trait Number:
    'static + Element + FromBytes + IntoBytes + KnownLayout + Immutable
{
    /// Rounds `x` to the nearest number.
    fn round(x: f32) -> Self;

    /// Rounds `from` to the nearest numbers and writes them to `into`, which has the same length.
    fn round_slice(from: &[f32], into: &mut [Self]);

    /// Returns the row if it has this type.
    fn same<'r, 'a>(row: &'r RowsView<'a, Ix1>) -> Option<&'r ArrayView1<'a, Self>>;

    /// Writes a row to `into`, which has the same length; it is rounded unless it has this type.
    fn store_row(row: RowsView<'_, Ix1>, into: &mut [Self]) {
        if let Some(row) = Self::same(&row) {
            return ArrayViewMut1::from(into).assign(row);
        }
        let row = row.to_f32();
        match row.as_slice() {
            Some(row) => Self::round_slice(row, into),
            None => row.iter().zip(into).for_each(|(&x, into)| *into = Self::round(x)),
        }
    }
}

impl<T: Number> RowElement for T {
    fn store_token(
        layout: &CacheRow,
        key: RowsView<'_, Ix1>,
        value: RowsView<'_, Ix1>,
        row: &mut [Self],
    ) {
        T::store_row(key, &mut row[..layout.head_dim]);
        T::store_row(value, &mut row[layout.value_offset..][..layout.value_dim]);
    }
}

impl RowElement for i8 {
    fn store_token(
        layout: &CacheRow,
        key: RowsView<'_, Ix1>,
        value: RowsView<'_, Ix1>,
        row: &mut [Self],
    ) {
        let scales = [
            round_to_integers(key, &mut row[..layout.head_dim]),
            round_to_integers(value, &mut row[layout.value_offset..][..layout.value_dim]),
        ];
        row[layout.scale_offset..].as_mut_bytes().copy_from_slice(scales.as_bytes());
    }
}

/// Rounds a row to integers and returns its scale.
fn round_to_integers(row: RowsView<'_, Ix1>, into: &mut [i8]) -> f32 {
    let row = row.to_f32();
    match row.as_slice() {
        Some(row) => round_row(row, into),
        None => round_row(&row.to_vec(), into),
    }
}

/// Writes a row to `into` in the bytes that a cache stores: its elements, and its scale if it has
/// one.
///
/// # Panics
/// If `into` is not as long as the stored row.
pub fn store(storage: Storage, row: RowsView<'_, Ix1>, into: &mut [u8]) {
    match storage {
        Storage::F32 => store_as::<f32>(row, into),
        Storage::F16 => store_as::<f16>(row, into),
        Storage::Bf16 => store_as::<bf16>(row, into),
        Storage::Q8 => {
            let (integers, scale) = into.split_at_mut(into.len() - SCALE_BYTES);
            let mut stored = vec![0; row.shape()[0]];
            let row_scale = round_to_integers(row, &mut stored);
            integers.copy_from_slice(stored.as_bytes());
            scale.copy_from_slice(&row_scale.to_ne_bytes());
        }
    }
}

fn store_as<T: Number>(row: RowsView<'_, Ix1>, into: &mut [u8]) {
    let mut stored = vec![T::round(0.0); row.shape()[0]];
    T::store_row(row, &mut stored);
    into.copy_from_slice(stored.as_bytes());
}

impl Number for f32 {
    fn same<'r, 'a>(row: &'r RowsView<'a, Ix1>) -> Option<&'r ArrayView1<'a, Self>> {
        if let RowsView::F32(row) = row { Some(row) } else { None }
    }
    fn round(x: f32) -> Self {
        x
    }
    fn round_slice(from: &[f32], into: &mut [Self]) {
        into.copy_from_slice(from);
    }
}

impl Number for f16 {
    fn same<'r, 'a>(row: &'r RowsView<'a, Ix1>) -> Option<&'r ArrayView1<'a, Self>> {
        if let RowsView::F16(row) = row { Some(row) } else { None }
    }
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn round_slice(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }
}

impl Number for bf16 {
    fn same<'r, 'a>(row: &'r RowsView<'a, Ix1>) -> Option<&'r ArrayView1<'a, Self>> {
        if let RowsView::Bf16(row) = row { Some(row) } else { None }
    }
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
    /// Rounds like [`Self::from_f32`], except for NaN, which never reaches a cache. Without that
    /// case the loop has no branch and is several times as fast.
    fn round_slice(from: &[f32], into: &mut [Self]) {
        for (x, into) in from.iter().zip(into) {
            let bits = x.to_bits();
            let half_even = 0x7fff + (bits >> 16 & 1);
            *into = Self::from_bits((bits.wrapping_add(half_even) >> 16) as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices are rounded to the same bits as single numbers by `half`: a million numbers of every
    /// magnitude, ties included.
    #[test]
    fn slices_are_rounded_like_single_numbers() {
        let spread = (0..=u32::MAX).step_by(4099);
        let ties = (0..=u32::MAX).step_by(1 << 12);
        let numbers: Vec<f32> =
            spread.chain(ties).map(f32::from_bits).filter(|x| x.is_finite()).collect();
        let mut brain = vec![bf16::ZERO; numbers.len()];
        let mut half = vec![f16::ZERO; numbers.len()];
        bf16::round_slice(&numbers, &mut brain);
        f16::round_slice(&numbers, &mut half);
        for ((&x, brain), half) in numbers.iter().zip(brain).zip(half) {
            assert_eq!(brain.to_bits(), bf16::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(half.to_bits(), f16::from_f32(x).to_bits(), "{x:e}");
        }
    }
}
