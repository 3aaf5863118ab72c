//! Structured output: the parameter `response_format`.

use vattention_llm::Grammar;

use crate::error::{ApiError, RESPONSE_FORMAT};
use crate::fields::{Fields, refuse_absence};

/// Reads `response_format`.
pub(crate) fn take_grammar(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    let Some(mut format) = fields.take_object(RESPONSE_FORMAT)? else { return Ok(None) };
    let path = format.path("type");
    let expected = "\"text\", \"json_object\" or \"json_schema\"";
    let kind = format.take_text("type")?.ok_or_else(|| refuse_absence(&path, expected))?;
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(Grammar::JsonObject),
        "json_schema" => Some(take_schema(&mut format)?),
        other => {
            let found: String = other.chars().take(40).collect();
            return Err(ApiError::parameter(path, format!("found {found:?}; expected {expected}")));
        }
    };
    format.expect_empty()?;
    Ok(grammar)
}

/// Reads `json_schema`. The text always follows the schema, so `strict` has no effect.
fn take_schema(format: &mut Fields) -> Result<Grammar, ApiError> {
    let path = format.path("json_schema");
    let mut outer =
        format.take_object("json_schema")?.ok_or_else(|| refuse_absence(&path, "an object"))?;
    outer.take_text("name")?;
    outer.take_text("description")?;
    outer.take_flag("strict")?;
    let path = outer.path("schema");
    let schema = outer.take("schema").ok_or_else(|| refuse_absence(&path, "a JSON schema"))?;
    if !schema.is_object() {
        return Err(ApiError::parameter(path, "expected a JSON schema, which is an object"));
    }
    outer.expect_empty()?;
    Ok(Grammar::JsonSchema(schema))
}
