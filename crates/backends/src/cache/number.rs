//! The numbers a cache can store.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::ArrayView1;
use vattention_core::Element;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An [`Element`] that f32 can be rounded to, and that any bytes are one of.
pub(crate) trait Number: Element + FromBytes + IntoBytes + KnownLayout + Immutable {
    /// The nearest number to `x`.
    fn round(x: f32) -> Self;

    /// The nearest numbers to `from`, into `into`, which is as long.
    fn round_slice(from: &[f32], into: &mut [Self]);

    /// The nearest numbers to `from`, however it lies, into `into`, which is as long.
    fn round_row(from: ArrayView1<'_, f32>, into: &mut [Self]) {
        match from.as_slice() {
            Some(from) => Self::round_slice(from, into),
            None => from.iter().zip(into).for_each(|(&x, into)| *into = Self::round(x)),
        }
    }
}

impl Number for f32 {
    fn round(x: f32) -> Self {
        x
    }
    fn round_slice(from: &[f32], into: &mut [Self]) {
        into.copy_from_slice(from);
    }
}

impl Number for f16 {
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn round_slice(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }
}

impl Number for bf16 {
    fn round(x: f32) -> Self {
        Self::from_f32(x)
    }
    fn round_slice(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }
}
