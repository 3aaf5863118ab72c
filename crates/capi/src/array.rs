//! Arrays of numbers that C passes.

use std::ffi::c_void;
use std::ptr::NonNull;

use half::{bf16, f16};
use ndarray::{ArrayView3, ShapeBuilder};
use vattention::RowsView;

use crate::pointers::{check_bytes, check_pointer, read_struct, versioned_struct};
use crate::status::CallError;

/// Number type of elements: VA_F32, VA_F16, VA_BF16 or VA_Q8.
pub type va_dtype = u32;

/// IEEE 754 numbers of 32 bits.
pub const VA_F32: va_dtype = 0;
/// IEEE 754 numbers of 16 bits.
pub const VA_F16: va_dtype = 1;
/// The upper 16 bits of VA_F32.
pub const VA_BF16: va_dtype = 2;
/// Integers of 8 bits from -127 to 127, with a scale per row in VA_F32.
pub const VA_Q8: va_dtype = 3;

/// An array of three dimensions, which a call reads and does not keep.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_array {
    /// sizeof(va_array).
    pub size: usize,
    /// Number type: VA_F32, VA_F16 or VA_BF16.
    pub dtype: va_dtype,
    /// First element. It may be NULL if a dimension is 0.
    pub data: *const c_void,
    /// Lengths of the dimensions.
    pub shape: [usize; 3],
    /// Elements from one index of each dimension to the next. If all are 0, the array is contiguous
    /// and the last dimension varies fastest.
    pub strides: [usize; 3],
}

versioned_struct!(va_array, strides: [usize; 3]);

/// Borrows an array of floats.
///
/// # Safety
/// A valid `array` has elements that are valid for reads during `'a`.
pub(crate) unsafe fn borrow_array<'a>(
    array: *const va_array,
    argument: &'static str,
) -> Result<RowsView<'a>, CallError> {
    // SAFETY: the caller vouches for the struct.
    let array = unsafe { read_struct(array, argument) }?;
    // SAFETY: the caller vouches for elements of this type.
    unsafe {
        Ok(match array.dtype {
            VA_F32 => borrow_elements::<f32>(&array, argument)?.into(),
            VA_F16 => borrow_elements::<f16>(&array, argument)?.into(),
            VA_BF16 => borrow_elements::<bf16>(&array, argument)?.into(),
            found => {
                let expected = "VA_F32, VA_F16 or VA_BF16";
                let message = format!("{argument}: expected the dtype {expected}, found {found}");
                return Err(CallError::argument(message));
            }
        })
    }
}

/// Borrows the elements of an array.
///
/// # Safety
/// The elements at all indices are valid for reads during `'a`, if the pointer is valid.
unsafe fn borrow_elements<'a, T>(
    array: &va_array,
    argument: &str,
) -> Result<ArrayView3<'a, T>, CallError> {
    let [a, b, c] = array.shape;
    let count = a.checked_mul(b).and_then(|count| count.checked_mul(c)).unwrap_or(usize::MAX);
    let contiguous = array.strides == [0; 3];
    let strides = if contiguous { [b.saturating_mul(c), c, 1] } else { array.strides };
    // Also the indices of an array whose elements overlap must be countable.
    check_bytes::<T>(count, argument)?;
    check_bytes::<T>(span(array.shape, strides), argument)?;
    let data = array.data.cast::<T>();
    if count > 0 {
        check_pointer(data, argument)?;
    }
    let data = if count > 0 { data } else { NonNull::dangling().as_ptr() };
    let [x, y, z] = strides;
    // SAFETY: the pointer is aligned, the sizes fit, and the caller vouches for the elements.
    Ok(unsafe { ArrayView3::from_shape_ptr((a, b, c).strides((x, y, z)), data) })
}

/// Number of elements from the first to the last one.
fn span(shape: [usize; 3], strides: [usize; 3]) -> usize {
    let mut last = 0_usize;
    for axis in 0..3 {
        let reach = shape[axis].saturating_sub(1).saturating_mul(strides[axis]);
        last = last.saturating_add(reach);
    }
    last.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::status::va_status;

    fn array<T>(data: &[T], dtype: va_dtype, shape: [usize; 3]) -> va_array {
        let size = size_of::<va_array>();
        va_array { size, dtype, data: data.as_ptr().cast(), shape, strides: [0; 3] }
    }

    fn read(array: &va_array) -> Result<RowsView<'_>, CallError> {
        // SAFETY: the arrays of these tests have the elements that they state.
        unsafe { borrow_array(array, "keys") }
    }

    #[test]
    fn arrays_have_any_type_and_strides() {
        let numbers: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let halves: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
        let contiguous = array(&numbers, VA_F32, [2, 3, 4]);
        let contiguous = read(&contiguous).unwrap().to_f32();
        assert!(contiguous.iter().eq(&numbers));
        let strided = va_array { strides: [1, 2, 6], ..array(&halves, VA_F16, [2, 3, 4]) };
        let strided = read(&strided).unwrap().to_f32();
        assert_eq!((strided[[1, 0, 0]], strided[[0, 1, 0]], strided[[1, 2, 3]]), (1.0, 2.0, 23.0));
        let empty = va_array { data: ptr::null(), ..array(&numbers, VA_BF16, [2, 0, 4]) };
        assert_eq!(read(&empty).unwrap().shape(), [2, 0, 4]);
    }

    #[test]
    fn wrong_arrays_are_refused() {
        let numbers = [0.0_f32; 24];
        let good = array(&numbers, VA_F32, [2, 3, 4]);
        let shifted = numbers.as_ptr().wrapping_byte_add(2).cast();
        for (bad, status) in [
            (va_array { dtype: VA_Q8, ..good }, va_status::VA_ERROR_ARGUMENT),
            (va_array { dtype: 77, ..good }, va_status::VA_ERROR_ARGUMENT),
            (va_array { data: ptr::null(), ..good }, va_status::VA_ERROR_POINTER),
            (va_array { data: shifted, ..good }, va_status::VA_ERROR_POINTER),
            (va_array { shape: [usize::MAX, 3, 4], ..good }, va_status::VA_ERROR_SHAPE),
            (va_array { strides: [usize::MAX, 3, 4], ..good }, va_status::VA_ERROR_SHAPE),
            (va_array { size: 8, ..good }, va_status::VA_ERROR_SIZE),
        ] {
            assert_eq!(read(&bad).unwrap_err().status, status, "{bad:?}");
        }
    }
}
