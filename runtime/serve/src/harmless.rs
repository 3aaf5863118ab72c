//! Parameters that clients send although they have no effect on this server.

use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, refuse_value};

/// Parameters that are accepted with any string: they identify the sender, or are hints.
const ANY_STRING: [&str; 3] = ["user", "safety_identifier", "prompt_cache_key"];

/// Parameters with the values that have no effect, as JSON. Other values are refused.
const WITHOUT_EFFECT: [(&str, &[&str]); 15] = [
    ("store", &["false"]),
    ("service_tier", &["\"auto\"", "\"default\""]),
    ("parallel_tool_calls", &["true"]),
    ("modalities", &["[\"text\"]"]),
    ("verbosity", &["\"medium\""]),
    ("best_of", &["1"]),
    ("suffix", &["\"\""]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("audio", &[]),
    ("prediction", &[]),
    ("reasoning_effort", &[]),
    ("web_search_options", &[]),
    ("prompt_cache_retention", &["\"in-memory\""]),
    ("moderation", &[]),
];

/// Removes parameters without effect, and refuses values that would need one.
pub(crate) fn drop_harmless(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ANY_STRING {
        fields.take_text(name)?;
    }
    if let Some(value) = fields.take("metadata")
        && !value.is_object()
    {
        return Err(refuse_value("metadata", &value, "an object"));
    }
    for (name, accepted) in WITHOUT_EFFECT {
        let Some(value) = fields.take(name) else { continue };
        if !accepted.contains(&value.to_string().as_str()) {
            return Err(refuse_effect(name, accepted, &value));
        }
    }
    Ok(())
}

fn refuse_effect(name: &str, accepted: &[&str], value: &Value) -> ApiError {
    let expected = match accepted {
        [] => "no value or null".into(),
        _ => format!("no value, null or {}", accepted.join(" or ")),
    };
    let text = value.to_string();
    let found = if text.len() > 40 { "another value" } else { &text };
    ApiError::unsupported(name, format!("{found} is not supported; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_without_effect_are_dropped() {
        let drop = |body: &str| {
            let mut fields = Fields::parse(body.as_bytes()).expect("the body is an object");
            drop_harmless(&mut fields).and_then(|()| fields.expect_empty())
        };
        let harmless = r#"{"user": "a", "store": false, "service_tier": "auto", "suffix": null,
            "parallel_tool_calls": true, "modalities": ["text"], "metadata": {"a": "b"}}"#;
        assert!(drop(harmless).is_ok());
        for body in [
            r#"{"user": 1}"#,
            r#"{"metadata": []}"#,
            r#"{"store": true}"#,
            r#"{"suffix": "end"}"#,
            r#"{"best_of": 2}"#,
            r#"{"modalities": ["text", "audio"]}"#,
            r#"{"audio": {"voice": "x"}}"#,
        ] {
            assert!(drop(body).is_err(), "{body}");
        }
    }
}
