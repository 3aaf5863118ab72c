//! Checks of pointers from C, and structs that begin with their size.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::status::{CallError, va_status};

/// Largest size of a struct of any version. A larger one was not set.
const MOST_BYTES: usize = 4096;

/// A struct of the interface that begins with its size, so that later versions can add fields.
/// Fields that are 0 have their defaults.
///
/// # Safety
/// The struct is `repr(C)`, its first field is `size: usize`, its last field is not followed by
/// padding, and zero bytes are a valid value of each field, as are all values that C can write.
pub(crate) unsafe trait VersionedStruct: Copy {
    /// Name in C.
    const NAME: &'static str;
    /// Size of the first version that had this struct.
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Implements [`VersionedStruct`] for a struct of numbers, raw pointers and optional functions, and
/// checks its first and its last field.
macro_rules! versioned_struct {
    ($name:ident, $last:ident: $last_type:ty) => {
        const _: () = {
            assert!(std::mem::offset_of!($name, size) == 0);
            let end = std::mem::offset_of!($name, $last) + size_of::<$last_type>();
            assert!(end == size_of::<$name>(), "padding at the end");
        };

        // SAFETY: the first field and the end are checked; zero bytes, and all that C can write,
        // are numbers, raw pointers and optional functions.
        unsafe impl $crate::pointers::VersionedStruct for $name {
            const NAME: &'static str = stringify!($name);
        }
    };
}

pub(crate) use versioned_struct;

/// Reads a struct that was compiled with this or with another version of the header.
///
/// # Safety
/// A pointer that is aligned and not null is valid for reads of the number of bytes that its field
/// `size` states.
pub(crate) unsafe fn read_struct<T: VersionedStruct>(
    from: *const T,
    argument: &str,
) -> Result<T, CallError> {
    check_pointer(from, argument)?;
    // SAFETY: the struct begins with its size.
    let size = unsafe { from.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < T::FIRST_SIZE || size > MOST_BYTES {
        let name = T::NAME;
        let message =
            format!("{argument}: expected size = sizeof({name}), which is {known}, found {size}");
        return Err(CallError::new(va_status::VA_ERROR_SIZE, message));
    }
    let bytes = from.cast::<u8>();
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have this number of bytes, and `read` is new memory.
    unsafe { ptr::copy_nonoverlapping(bytes, read.as_mut_ptr().cast(), size.min(known)) };
    // SAFETY: the caller's struct has `size` bytes.
    let newer =
        unsafe { slice::from_raw_parts(bytes.add(size.min(known)), size.saturating_sub(known)) };
    if newer.iter().any(|&byte| byte != 0) {
        let message = format!(
            "{argument}: fields behind the first {known} bytes are set, which this version of the \
             library does not know; expected 0"
        );
        return Err(CallError::new(va_status::VA_ERROR_SIZE, message));
    }
    // SAFETY: zero bytes and the values that C writes are valid.
    Ok(unsafe { read.assume_init() })
}

/// Checks that a pointer is aligned and not null.
pub(crate) fn check_pointer<T>(pointer: *const T, argument: &str) -> Result<(), CallError> {
    let refuse = |found| {
        let message = format!("{argument}: expected a pointer, found {found}");
        Err(CallError::new(va_status::VA_ERROR_POINTER, message))
    };
    if pointer.is_null() {
        return refuse("NULL");
    }
    if !pointer.is_aligned() {
        return refuse("one that is not aligned to its type");
    }
    Ok(())
}

/// Borrows elements from C. Without elements, the pointer may be null.
///
/// # Safety
/// A pointer that is aligned and not null is valid for reads of `len` elements during `'a`.
pub(crate) unsafe fn borrow<'a, T>(
    pointer: *const T,
    len: usize,
    argument: &str,
) -> Result<&'a [T], CallError> {
    if len == 0 {
        return Ok(&[]);
    }
    check_pointer(pointer, argument)?;
    check_bytes::<T>(len, argument)?;
    // SAFETY: the caller vouches for the elements, whose number of bytes fits.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// Checks that a number of elements can be in memory.
pub(crate) fn check_bytes<T>(len: usize, argument: &str) -> Result<(), CallError> {
    let bytes = len.checked_mul(size_of::<T>());
    if bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok()) {
        return Ok(());
    }
    Err(CallError::shape(format!(
        "{argument}: expected less than 2^63 bytes, found {len} elements"
    )))
}

/// Borrows a text from C.
///
/// # Safety
/// A pointer that is not null points to a text that ends with a zero byte, and that does not change
/// during `'a`.
pub(crate) unsafe fn borrow_text<'a>(
    text: *const c_char,
    argument: &str,
) -> Result<&'a str, CallError> {
    check_pointer(text, argument)?;
    // SAFETY: the caller vouches for the text.
    let text = unsafe { CStr::from_ptr(text) };
    let refuse = |error| CallError::argument(format!("{argument}: expected UTF-8: {error}"));
    text.to_str().map_err(refuse)
}

/// Writes a value that a call returns.
///
/// # Safety
/// A pointer that is aligned and not null is valid for a write.
pub(crate) unsafe fn write_value<T>(to: *mut T, value: T, argument: &str) -> Result<(), CallError> {
    check_pointer(to, argument)?;
    // SAFETY: the pointer is aligned, and the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Older {
        size: usize,
        count: usize,
    }

    /// The next version of the same struct.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Newer {
        size: usize,
        count: usize,
        scale: f64,
    }

    // SAFETY: all fields are numbers, the first of which is the size.
    unsafe impl VersionedStruct for Older {
        const NAME: &'static str = "older";
    }

    // SAFETY: all fields are numbers, the first of which is the size.
    unsafe impl VersionedStruct for Newer {
        const NAME: &'static str = "newer";
        const FIRST_SIZE: usize = size_of::<Older>();
    }

    #[test]
    fn structs_of_older_and_newer_headers_are_read() {
        let older = Older { size: size_of::<Older>(), count: 3 };
        let newer = Newer { size: size_of::<Newer>(), count: 3, scale: 0.0 };
        // SAFETY: the structs have the sizes that they state.
        unsafe {
            let read = read_struct(ptr::from_ref(&older).cast::<Newer>(), "new").unwrap();
            assert_eq!((read.count, read.scale), (3, 0.0));
            let read = read_struct(ptr::from_ref(&newer).cast::<Older>(), "old").unwrap();
            assert_eq!(read.count, 3);
            let set = Newer { scale: 0.5, ..newer };
            let error = read_struct(ptr::from_ref(&set).cast::<Older>(), "old").unwrap_err();
            assert_eq!(error.status, va_status::VA_ERROR_SIZE);
        }
    }

    #[test]
    fn wrong_sizes_and_pointers_are_refused() {
        let refused = |pointer: *const Older| {
            // SAFETY: the pointers are null, not aligned, or point to a struct.
            let error = unsafe { read_struct(pointer, "layer") }.unwrap_err();
            (error.status, error.message)
        };
        for size in [0, 8, size_of::<Older>() - 1, usize::MAX] {
            let (status, message) = refused(&Older { size, count: 3 });
            assert_eq!(status, va_status::VA_ERROR_SIZE);
            assert!(message.contains("layer: expected size = sizeof(older)"), "{message}");
        }
        let older = Older { size: size_of::<Older>(), count: 3 };
        assert_eq!(refused(ptr::null()).0, va_status::VA_ERROR_POINTER);
        let shifted = ptr::from_ref(&older).wrapping_byte_add(1);
        assert_eq!(refused(shifted).0, va_status::VA_ERROR_POINTER);
    }
}
