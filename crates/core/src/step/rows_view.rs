//! Keys and values as they are given, in any number type that a cache stores.

use half::{bf16, f16};
use ndarray::{ArrayView, Axis, CowArray, Dimension, Ix3, RemoveAxis};

use crate::step::Element;

/// Keys or values as they are given: `[kv_heads, new, dim]` to [`append`](trait.Attention.html#method.append), in f32, f16 or bf16, with any
/// strides. Made of an array's view by `into()`.
#[derive(Clone, Copy, Debug)]
pub enum RowsView<'a, D: Dimension = Ix3> {
    /// 4 bytes a number.
    F32(ArrayView<'a, f32, D>),
    /// 2 bytes, 11 bits of precision.
    F16(ArrayView<'a, f16, D>),
    /// 2 bytes, 8 bits of precision.
    Bf16(ArrayView<'a, bf16, D>),
}

impl<'a, D: Dimension> RowsView<'a, D> {
    /// The lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::F32(rows) => rows.shape(),
            Self::F16(rows) => rows.shape(),
            Self::Bf16(rows) => rows.shape(),
        }
    }

    /// The part at `i` of the first axis.
    ///
    /// # Panics
    /// If it is not so long.
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

    /// The same numbers in f32, which holds all of them: borrowed if they are that.
    pub fn to_f32(self) -> CowArray<'a, f32, D> {
        match self {
            Self::F32(rows) => rows.into(),
            Self::F16(rows) => widened(&rows).into(),
            Self::Bf16(rows) => widened(&rows).into(),
        }
    }
}

fn widened<T: Element + Into<f32>, D: Dimension>(
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
