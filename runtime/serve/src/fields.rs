//! Reader of JSON objects that refuses unknown fields and values of wrong types.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Fields of a JSON object that have not been read yet.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Path of the object with a trailing dot; empty for the body.
    prefix: String,
    values: Map<String, Value>,
}

impl Fields {
    /// Reads the fields of a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(values) => Ok(Self { prefix: String::new(), values }),
            other => {
                let found = describe_value(&other);
                Err(ApiError::malformed(format!("found {found} as the body; expected an object")))
            }
        }
    }

    /// Returns the fields of an object within a body.
    pub(crate) fn within(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(values) => Ok(Self { prefix: format!("{path}."), values }),
            other => Err(refuse_value(path, &other, "an object")),
        }
    }

    /// Returns the path of a field in the body.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns true if a field is present, and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|value| !value.is_null())
    }

    /// Removes a field; `None` if it is absent or null.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.values.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn take_text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(refuse_value(&self.path(name), &other, "a string")),
        }
    }

    pub(crate) fn take_flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(refuse_value(&self.path(name), &other, "true or false")),
        }
    }

    /// Removes a number for which `accepts` returns true.
    pub(crate) fn take_number(
        &mut self,
        name: &str,
        expected: &str,
        accepts: impl Fn(f64) -> bool,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|&number| accepts(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(refuse_value(&self.path(name), &value, expected)),
        }
    }

    /// Removes an integer between two bounds, which are included.
    pub(crate) fn take_integer(
        &mut self,
        name: &str,
        least: i64,
        most: i64,
    ) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        if let Some(number) = value.as_i64().filter(|number| (least..=most).contains(number)) {
            return Ok(Some(number));
        }
        let expected = if most == i64::MAX {
            format!("an integer of at least {least}")
        } else {
            format!("an integer from {least} to {most}")
        };
        Err(refuse_value(&self.path(name), &value, &expected))
    }

    /// Removes a count: an integer from 0 to `most`.
    pub(crate) fn take_count(&mut self, name: &str, most: i64) -> Result<Option<usize>, ApiError> {
        Ok(self.take_integer(name, 0, most)?.map(|number| number as usize))
    }

    pub(crate) fn take_list(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(other) => Err(refuse_value(&self.path(name), &other, "a list")),
        }
    }

    pub(crate) fn take_object(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        self.take(name).map(|value| Self::within(&self.path(name), value)).transpose()
    }

    /// Returns all remaining fields, known or not.
    pub(crate) fn into_values(self) -> Map<String, Value> {
        self.values
    }

    /// Refuses an object with a field that has not been read.
    pub(crate) fn expect_empty(self) -> Result<(), ApiError> {
        match self.values.keys().next() {
            None => Ok(()),
            Some(name) => {
                let reason = "this parameter is not supported; expected a request without it";
                Err(ApiError::unsupported(self.path(name), reason))
            }
        }
    }
}

/// Returns the error about a missing parameter.
pub(crate) fn refuse_absence(path: &str, expected: &str) -> ApiError {
    ApiError::parameter(path, format!("missing; expected {expected}"))
}

/// Returns the error about a value of a wrong type or outside of its range.
pub(crate) fn refuse_value(path: &str, found: &Value, expected: &str) -> ApiError {
    ApiError::parameter(path, format!("found {}; expected {expected}", describe_value(found)))
}

/// Returns a short description of a value: the value itself if it is short.
fn describe_value(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > LONGEST => "a longer string".into(),
        other => other.to_string(),
    }
}
