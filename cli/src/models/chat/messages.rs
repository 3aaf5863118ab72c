//! Conversations from files.

use std::path::Path;

use serde_json::{Map, Value};

use crate::fail::Failure;
use crate::models::checkpoint::read_text;

/// Conversation of a file, whose last message asks for an answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct MessagesFile {
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Value>,
    /// Variables of the template besides these.
    pub(super) variables: Map<String, Value>,
}

impl MessagesFile {
    /// Reads a file of `--messages`.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed. The message names the file, and the entry or
    /// key.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let text = read_text("--messages", path)?;
        Self::parse(&text)
            .map_err(|reason| Failure::input(format!("--messages {}: {reason}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let object = match serde_json::from_str(text).map_err(|error| error.to_string())? {
            messages @ Value::Array(_) => Map::from_iter([("messages".to_owned(), messages)]),
            Value::Object(object) => object,
            _ => return Err("expected a list of messages, or an object with `messages`".into()),
        };
        let mut file = Self::default();
        for (key, value) in object {
            match (key.as_str(), value) {
                ("messages", Value::Array(messages)) => file.messages = messages,
                ("tools", tools @ (Value::Array(_) | Value::Null)) => file.tools = Some(tools),
                ("chat_template_kwargs", Value::Object(variables)) => file.variables = variables,
                ("messages" | "tools", _) => return Err(format!("`{key}`: expected a list")),
                ("chat_template_kwargs", _) => return Err(format!("`{key}`: expected an object")),
                _ => {
                    let expected = "`messages`, `tools` or `chat_template_kwargs`";
                    return Err(format!("unknown key `{key}`; expected {expected}"));
                }
            }
        }
        file.expect_question()?;
        Ok(file)
    }

    /// Refuses a conversation whose last message does not ask for an answer.
    fn expect_question(&self) -> Result<(), String> {
        let Some(last) = self.messages.len().checked_sub(1) else {
            return Err("there are no messages; expected at least one".into());
        };
        match self.messages[last]["role"].as_str() {
            Some(role @ ("assistant" | "system" | "developer")) => Err(format!(
                "`messages[{last}].role` is {role:?}; expected a last message to answer, of `user` \
                 or `tool`"
            )),
            _ => Ok(()),
        }
    }
}

/// Parses the object of `--chat-template-kwargs`.
pub(super) fn parse_variables(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_lists_or_objects() {
        let message = r#"{"role": "user", "content": "Hi"}"#;
        let list = MessagesFile::parse(&format!("[{message}]")).expect("a list");
        let object = MessagesFile::parse(&format!(r#"{{"messages": [{message}]}}"#));
        assert_eq!(object.as_ref(), Ok(&list));
        let whole = format!(
            r#"{{"tools": [], "messages": [{message}], "chat_template_kwargs": {{"a": false}}}}"#
        );
        let whole = MessagesFile::parse(&whole).expect("an object");
        assert_eq!(whole.messages, list.messages);
        assert_eq!(whole.variables["a"], false);
        assert!(whole.tools.is_some());
    }
}
