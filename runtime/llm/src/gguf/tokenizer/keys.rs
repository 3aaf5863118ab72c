//! Typed access to GGUF metadata. Errors name the key, its value, and what was expected.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;

use crate::gguf::value::{typed, whole_number};

/// Metadata of a GGUF file.
#[derive(Clone, Copy)]
pub(crate) struct TokenizerKeys<'m>(pub(crate) &'m HashMap<String, Value>);

impl<'m> TokenizerKeys<'m> {
    fn read<T>(
        self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'m Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let refuse = || format!("`{key}` is {}; expected {expected}", typed(value));
        convert(value).ok_or_else(refuse).map(Some)
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'m str>, String> {
        self.read(key, "a text", as_text)
    }

    pub(super) fn flag(self, key: &str) -> Result<Option<bool>, String> {
        let as_flag = |value: &Value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        };
        self.read(key, "true or false", as_flag)
    }

    /// Reads a token of a vocabulary of `size` tokens.
    pub(crate) fn token(self, key: &str, size: usize) -> Result<Option<u32>, String> {
        let as_token = |value: &Value| {
            let token = whole_number(value).and_then(|token| u32::try_from(token).ok());
            token.filter(|&token| (token as usize) < size)
        };
        self.read(key, &format!("one of the {size} tokens"), as_token)
    }

    pub(crate) fn texts(self, key: &str) -> Result<Vec<&'m str>, String> {
        self.array(key, "a text", as_text)?.ok_or_else(|| missing(key, "an array of texts"))
    }

    pub(super) fn integers(self, key: &str) -> Result<Option<Vec<i64>>, String> {
        self.array(key, "an integer", whole_number)
    }

    pub(super) fn numbers(self, key: &str) -> Result<Vec<f32>, String> {
        let as_number = |value: &Value| match value {
            Value::F32(number) if !number.is_nan() => Some(*number),
            _ => None,
        };
        self.array(key, "an F32 number", as_number)?
            .ok_or_else(|| missing(key, "an array of F32 elements"))
    }

    fn array<T>(
        self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'m Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, String> {
        let as_array = |value: &'m Value| match value {
            Value::Array(values) => Some(values),
            _ => None,
        };
        let Some(values) = self.read(key, "an array", as_array)? else { return Ok(None) };
        let item = |(place, value)| {
            let refuse =
                || format!("`{key}`: item {place} is {}; expected {expected}", typed(value));
            convert(value).ok_or_else(refuse)
        };
        values.iter().enumerate().map(item).collect::<Result<_, _>>().map(Some)
    }
}

pub(crate) fn missing(key: &str, expected: &str) -> String {
    format!("`{key}` is missing; expected {expected}")
}

fn as_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}
