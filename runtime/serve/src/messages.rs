//! Messages of a conversation, as chat templates expect them.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, refuse_absence, refuse_value};

/// Name of the parameter.
pub(crate) const MESSAGES: &str = "messages";
/// Maximum number of messages of a conversation.
const MOST_MESSAGES: usize = 4096;
/// Roles with their names in chat templates. Templates do not know `developer`, OpenAI's newer name
/// of `system`.
const ROLES: [(&str, &str); 5] = [
    ("system", "system"),
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "tool"),
];
/// Fields that templates may read.
const PASSED: [&str; 4] = ["name", "tool_call_id", "reasoning_content", "thinking"];
/// Fields that clients send back with the messages of the assistant, and that must be empty.
const EMPTY: [&str; 4] = ["refusal", "audio", "function_call", "annotations"];

/// Reads `messages`.
pub(crate) fn read_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let values = fields.take_list(MESSAGES)?;
    let values = values.ok_or_else(|| refuse_absence(MESSAGES, "a list of messages"))?;
    if values.is_empty() || values.len() > MOST_MESSAGES {
        let reason = format!("found {}; expected 1 to {MOST_MESSAGES} messages", values.len());
        return Err(ApiError::parameter(MESSAGES, reason));
    }
    let read = |(index, value)| read_message(&format!("{MESSAGES}[{index}]"), value);
    values.into_iter().enumerate().map(read).collect()
}

fn read_message(path: &str, value: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::within(path, value)?;
    let role = take_role(&mut fields)?;
    let mut message = Map::from_iter([("role".to_owned(), role.into())]);
    let calls = take_calls(&mut fields)?;
    let content = take_content(&mut fields)?;
    if content.is_none() && (role != "assistant" || calls.is_none()) {
        return Err(refuse_absence(&fields.path("content"), "a text or a list of parts"));
    }
    // Templates concatenate the content without checking its type.
    message.insert("content".into(), content.unwrap_or_else(|| "".into()));
    message.extend(calls.map(|calls| ("tool_calls".to_owned(), calls)));
    for name in PASSED {
        message.extend(fields.take_text(name)?.map(|text| (name.to_owned(), text.into())));
    }
    for name in EMPTY {
        let path = fields.path(name);
        match fields.take(name) {
            None => {}
            Some(Value::Array(values)) if values.is_empty() => {}
            Some(other) => return Err(refuse_value(&path, &other, "no value or null")),
        }
    }
    fields.expect_empty()?;
    Ok(Value::Object(message))
}

fn take_role(fields: &mut Fields) -> Result<&'static str, ApiError> {
    let expected = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
    let path = fields.path("role");
    let role = fields.take_text("role")?.ok_or_else(|| refuse_absence(&path, expected))?;
    let found = ROLES.iter().find(|(name, _)| *name == role);
    found.map(|&(_, name)| name).ok_or_else(|| refuse_value(&path, &role.into(), expected))
}

/// Reads `content`: a text, or a list of text parts, which `ChatTemplate` joins.
fn take_content(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let path = fields.path("content");
    let content = fields.take("content");
    match &content {
        None | Some(Value::String(_)) => {}
        Some(Value::Array(parts)) => {
            for (index, part) in parts.iter().enumerate() {
                check_part(&format!("{path}[{index}]"), part.clone())?;
            }
        }
        Some(other) => return Err(refuse_value(&path, other, "a text or a list of parts")),
    }
    Ok(content)
}

fn check_part(path: &str, part: Value) -> Result<(), ApiError> {
    let mut fields = Fields::within(path, part)?;
    let kind = fields.take_text("type")?;
    if kind.as_deref() != Some("text") {
        let reason = "only parts of the type \"text\" are supported";
        return Err(ApiError::unsupported(fields.path("type"), reason));
    }
    let path = fields.path("text");
    fields.take_text("text")?.ok_or_else(|| refuse_absence(&path, "a text"))?;
    fields.expect_empty()
}

/// Reads `tool_calls`: calls with the function's name and arguments.
fn take_calls(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let path = fields.path("tool_calls");
    let calls = fields.take_list("tool_calls")?.unwrap_or_default();
    let is_wrong = |call: &Value| !call["function"].is_object();
    if let Some((index, call)) = calls.iter().enumerate().find(|(_, call)| is_wrong(call)) {
        let expected = "an object with the object `function`";
        return Err(refuse_value(&format!("{path}[{index}]"), call, expected));
    }
    Ok((!calls.is_empty()).then_some(Value::Array(calls)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(messages: Value) -> Result<Vec<Value>, ApiError> {
        let body = json!({ "messages": messages }).to_string();
        read_messages(&mut Fields::parse(body.as_bytes())?)
    }

    #[test]
    fn messages_become_those_of_templates() {
        let call = json!({"id": "1", "function": {"name": "find", "arguments": "{}"}});
        let found = read(json!([
            {"role": "developer", "content": "a"},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "c"},
        ]));
        let found = found.expect("the messages are valid");
        assert_eq!(found[0], json!({"role": "system", "content": "a"}));
        assert_eq!(found[1]["content"], "");
        assert_eq!(found[1]["tool_calls"][0]["function"]["name"], "find");
        assert_eq!(found[2], json!({"role": "tool", "content": "c", "tool_call_id": "1"}));
    }

    #[test]
    fn errors_name_the_place() {
        let cases = [
            (json!([]), "messages"),
            (json!(["a"]), "messages[0]"),
            (json!([{"content": "a"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
            (json!([{"role": "user", "content": "a", "mood": 1}]), "messages[0].mood"),
            (json!([{"role": "user", "content": [{"type": "x"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "assistant", "tool_calls": [1]}]), "messages[0].tool_calls[0]"),
        ];
        for (messages, place) in cases {
            let error = read(messages).expect_err("the messages are wrong");
            let document = serde_json::to_value(error.document()).expect("errors are JSON");
            assert_eq!(document["error"]["param"], place);
        }
    }
}
