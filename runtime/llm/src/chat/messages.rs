//! Conversations in the format of chat APIs, and their conversion to variables of templates.

use std::borrow::Cow;
use std::collections::BTreeMap;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

use super::files::SpecialTexts;
use crate::{Error, Result};

/// Variables that have fields of their own in [`ChatMessages`].
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Conversation to render, in the format of chat APIs.
#[derive(Clone, Copy, Debug)]
pub struct ChatMessages<'a> {
    /// Messages: objects with a `role`, a `content`, and further keys that templates read, such as
    /// `tool_calls`. The content is a text or a list of parts `{"type": "text", "text": ..}`, which
    /// are joined by line breaks.
    pub messages: &'a [Json],
    /// List of the tools that the model may call.
    pub tools: Option<&'a Json>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: &'a Map<String, Json>,
    /// True if the prompt ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
}

impl ChatMessages<'_> {
    /// Returns the variables of the template.
    pub(super) fn collect_variables(
        &self,
        texts: &SpecialTexts,
    ) -> Result<BTreeMap<String, Value>> {
        if self.messages.is_empty() {
            return Err(Error::input("messages", "there are none; expected at least one"));
        }
        if let Some(name) = RESERVED.into_iter().find(|name| self.variables.contains_key(*name)) {
            let reason = format!("`{name}` is no further variable; expected another name");
            return Err(Error::input("variables", reason));
        }
        let mut variables = BTreeMap::from([
            ("documents".to_owned(), Value::from(())),
            ("tools".to_owned(), self.list_tools()?),
        ]);
        for (name, text) in [("bos_token", &texts.bos), ("eos_token", &texts.eos)] {
            variables.extend(text.as_deref().map(|text| (name.to_owned(), Value::from(text))));
        }
        let further = self.variables.iter();
        variables.extend(further.map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        let messages = self.messages.iter().enumerate().map(|(place, message)| {
            let prepared = prepare(message).map_err(|(key, reason)| {
                Error::input("messages", format!("`[{place}]{key}` {reason}"))
            });
            Ok(Value::from(Serde(prepared?)))
        });
        variables.insert("messages".into(), Value::from(messages.collect::<Result<Vec<_>>>()?));
        variables.insert("add_generation_prompt".into(), self.add_generation_prompt.into());
        Ok(variables)
    }

    /// Returns the tools, or `none` instead of an empty list, for which templates would write a
    /// heading.
    fn list_tools(&self) -> Result<Value> {
        match self.tools {
            None | Some(Json::Null) => Ok(Value::from(())),
            Some(Json::Array(tools)) if tools.is_empty() => Ok(Value::from(())),
            Some(tools @ Json::Array(_)) => Ok(Value::from(Serde(tools))),
            Some(other) => {
                Err(Error::input("tools", format!("found {}; expected a list", describe(other))))
            }
        }
    }
}

/// Place of a fault in a message, and its description.
type MessageFault = (String, String);

fn fault(key: impl Into<String>, found: Option<&Json>, expected: &str) -> MessageFault {
    let found = found.map_or("is missing".into(), |found| format!("is {}", describe(found)));
    (key.into(), format!("{found}; expected {expected}"))
}

fn describe(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// Checks a message, and returns it in the form that templates expect: the content is one text, and
/// the arguments of tool calls are objects.
fn prepare(message: &Json) -> Result<Cow<'_, Json>, MessageFault> {
    let expected = "an object with `role` and `content`";
    let object = message.as_object().ok_or_else(|| fault("", Some(message), expected))?;
    if !object.get("role").is_some_and(Json::is_string) {
        return Err(fault(".role", object.get("role"), "a text"));
    }
    let mut prepared = Cow::Borrowed(message);
    match object.get("content") {
        None | Some(Json::Null | Json::String(_)) => {}
        Some(Json::Array(parts)) => prepared.to_mut()["content"] = join_parts(parts)?.into(),
        other => return Err(fault(".content", other, "a text or a list of parts")),
    }
    match object.get("tool_calls") {
        None | Some(Json::Null) => {}
        Some(Json::Array(calls)) => {
            for (place, call) in calls.iter().enumerate() {
                if let Some(arguments) = parse_arguments(call, place)? {
                    prepared.to_mut()["tool_calls"][place]["function"]["arguments"] = arguments;
                }
            }
        }
        other => return Err(fault(".tool_calls", other, "a list")),
    }
    Ok(prepared)
}

fn join_parts(parts: &[Json]) -> Result<String, MessageFault> {
    let mut texts = Vec::with_capacity(parts.len());
    for (place, part) in parts.iter().enumerate() {
        let key = |name: &str| format!(".content[{place}]{name}");
        match part.get("type") {
            Some(Json::String(kind)) if kind == "text" => {}
            Some(Json::String(kind)) => {
                return Err((key(".type"), format!("is \"{kind}\"; expected \"text\"")));
            }
            other => return Err(fault(key(".type"), other, "\"text\"")),
        }
        let text = part.get("text");
        texts.push(text.and_then(Json::as_str).ok_or_else(|| fault(key(".text"), text, "a text"))?);
    }
    Ok(texts.join("\n"))
}

/// Returns the arguments of a tool call that are the text of an object, as clients send them;
/// `None` if there is no such text.
fn parse_arguments(call: &Json, place: usize) -> Result<Option<Json>, MessageFault> {
    let Some(Json::String(text)) = call.get("function").and_then(|call| call.get("arguments"))
    else {
        return Ok(None);
    };
    if text.trim().is_empty() {
        return Ok(Some(Json::Object(Map::new())));
    }
    let key = format!(".tool_calls[{place}].function.arguments");
    let expected = "expected the text of an object";
    match serde_json::from_str(text) {
        Ok(arguments @ Json::Object(_)) => Ok(Some(arguments)),
        Ok(other) => Err((key, format!("is the text of {}; {expected}", describe(&other)))),
        Err(error) => Err((key, format!("is no JSON: {error}; {expected}"))),
    }
}
