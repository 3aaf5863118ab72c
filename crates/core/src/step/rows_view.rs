//! Keys and values from callers, in any number type that a cache stores.

use half::{bf16, f16};
use ndarray::{ArrayView, Axis, CowArray, Dimension, Ix3, RemoveAxis};

use crate::step::Element;

/// Keys or values from a caller, in f32, f16 or bf16, with any strides. For
/// [`append`](trait.Attention.html#method.append) the shape is `[kv_heads, new, dim]`. Views of
/// arrays are converted by `into()`.
#[derive(Clone, Copy, Debug)]
pub enum RowsView<'a, D: Dimension = Ix3> {
    /// 4 bytes per number.
    F32(ArrayView<'a, f32, D>),
    /// 2 bytes per number, 11 bits of precision.
    F16(ArrayView<'a, f16, D>),
    /// 2 bytes per number, 8 bits of precision.
    Bf16(ArrayView<'a, bf16, D>),
}

impl<'a, D: Dimension> RowsView<'a, D> {
    /// Lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::F32(rows) => rows.shape(),
            Self::F16(rows) => rows.shape(),
            Self::Bf16(rows) => rows.shape(),
        }
    }

    /// Subview at index `i` of the first axis.
    ///
    /// # Panics
    /// Panics if `i` is out of bounds.
    #[must_use]
    pub fn index(self, i: usize) -> RowsView<'a, D::Smaller>
    where
        D: RemoveAxis,
    {
        match self {
            Self::F32(rows) => rows.index_axis_move(Axis(0), i).into(),
            Self::F16(rows) => rows.index_axis_move(Axis(0), i).into(),
            Self::Bf16(rows) => rows.index_axis_move(Axis(0), i).into(),
        }
    }

    /// Returns the same numbers in f32, which is exact. Numbers in f32 are borrowed.
    pub fn to_f32(self) -> CowArray<'a, f32, D> {
        match self {
            Self::F32(rows) => rows.into(),
            Self::F16(rows) => widen(&rows).into(),
            Self::Bf16(rows) => widen(&rows).into(),
        }
    }
}

fn widen<T: Element + Into<f32>, D: Dimension>(
    rows: &ArrayView<'_, T, D>,
) -> ndarray::Array<f32, D> {
    let Some(numbers) = rows.as_slice() else { return rows.mapv(Into::into) };
    let mut wide = ndarray::Array::zeros(rows.raw_dim());
    T::widen(numbers, wide.as_slice_mut().expect("a new array is in order"));
    wide
}

impl<'a, D: Dimension> From<ArrayView<'a, f32, D>> for RowsView<'a, D> {
    fn from(rows: ArrayView<'a, f32, D>) -> Self {
        Self::F32(rows)
    }
}

impl<'a, D: Dimension> From<ArrayView<'a, f16, D>> for RowsView<'a, D> {
    fn from(rows: ArrayView<'a, f16, D>) -> Self {
        Self::F16(rows)
    }
}

impl<'a, D: Dimension> From<ArrayView<'a, bf16, D>> for RowsView<'a, D> {
    fn from(rows: ArrayView<'a, bf16, D>) -> Self {
        Self::Bf16(rows)
    }
}
