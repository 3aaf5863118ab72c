//! Arguments that several functions have.

use vattention::TokenClass;

use crate::pointers::borrow;
use crate::status::CallError;

/// Converts the numbers of classes.
///
/// # Safety
/// A pointer that is not null is valid for `tokens` reads.
pub(crate) unsafe fn borrow_classes(
    classes: *const u8,
    tokens: usize,
) -> Result<Option<Vec<TokenClass>>, CallError> {
    if classes.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for the classes.
    let numbers = unsafe { borrow(classes, tokens, "classes") }?;
    let class = |(i, &number): (usize, &u8)| {
        TokenClass::from_number(number).ok_or_else(|| {
            let expected = TokenClass::NUMBERS;
            CallError::argument(format!("classes[{i}]: expected {expected}, found {number}"))
        })
    };
    numbers.iter().enumerate().map(class).collect::<Result<_, _>>().map(Some)
}

/// Borrows the numbers of visible tokens, `[queries]`.
///
/// # Safety
/// A pointer that is not null is valid for `queries` reads during `'a`.
pub(crate) unsafe fn borrow_visible<'a>(
    visible: *const usize,
    queries: usize,
) -> Result<Option<&'a [usize]>, CallError> {
    if visible.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for the limits.
    unsafe { borrow(visible, queries, "visible") }.map(Some)
}

/// Reads the number of a forked sequence.
///
/// # Safety
/// A pointer that is aligned and not null is valid for a read.
pub(crate) unsafe fn read_sequence(sequence: *const u32) -> Result<Option<u32>, CallError> {
    if sequence.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for the number.
    unsafe { borrow(sequence, 1, "sequence") }.map(|numbers| Some(numbers[0]))
}
