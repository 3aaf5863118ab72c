//! Values of GGUF metadata: integers of any width, and the text of values in error messages.

use candle_core::quantized::gguf_file::Value;

/// Largest number of characters of a text that a message shows.
const SHOWN: usize = 40;

/// Returns a number of any integer type; `None` for other types and numbers beyond `i64`.
pub(crate) fn whole_number(value: &Value) -> Option<i64> {
    match *value {
        Value::U8(number) => Some(number.into()),
        Value::I8(number) => Some(number.into()),
        Value::U16(number) => Some(number.into()),
        Value::I16(number) => Some(number.into()),
        Value::U32(number) => Some(number.into()),
        Value::I32(number) => Some(number.into()),
        Value::U64(number) => number.try_into().ok(),
        Value::I64(number) => Some(number),
        _ => None,
    }
}

/// Beginning of a text from a file, for messages.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Text of a value that has the right type, for messages.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("an array of {}", values.len()),
        Value::U8(number) => number.to_string(),
        Value::I8(number) => number.to_string(),
        Value::U16(number) => number.to_string(),
        Value::I16(number) => number.to_string(),
        Value::U32(number) => number.to_string(),
        Value::I32(number) => number.to_string(),
        Value::U64(number) => number.to_string(),
        Value::I64(number) => number.to_string(),
        Value::F32(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
    }
}

/// Text of a value with its type, for messages about wrong types.
pub(crate) fn typed(value: &Value) -> String {
    let kind = match value {
        Value::String(_) | Value::Array(_) | Value::Bool(_) => return shown(value),
        Value::U8(_) => "u8",
        Value::I8(_) => "i8",
        Value::U16(_) => "u16",
        Value::I16(_) => "i16",
        Value::U32(_) => "u32",
        Value::I32(_) => "i32",
        Value::U64(_) => "u64",
        Value::I64(_) => "i64",
        Value::F32(_) => "f32",
        Value::F64(_) => "f64",
    };
    format!("{} of type {kind}", shown(value))
}
