//! Tests of every field with values of wrong types and outside of their ranges.

use serde_json::{Value, json};

use crate::common::{CHAT, COMPLETIONS, TestServer, chat, completion, with};

/// Returns values of all types. A field accepts only the values of its [`Kind`].
fn values() -> Vec<Value> {
    vec![
        json!(true),
        json!(-3),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!("text"),
        json!(""),
        json!([]),
        json!([[]]),
        json!([null]),
        json!([1.5]),
        json!([{"a": 1}]),
        json!({}),
        json!({"a": []}),
    ]
}

/// Kinds of values that a field accepts.
#[derive(Clone, Copy)]
enum Kind {
    Flag,
    /// Number of this range; both integers and fractions are tested.
    Number(f64, f64),
    Integer(f64, f64),
    Text,
    List,
    Object,
    /// None of the [`values`].
    Other,
}

impl Kind {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Flag => value.is_boolean(),
            Self::Number(least, most) => value.as_f64().is_some_and(|x| least <= x && x <= most),
            Self::Integer(least, most) => {
                value.as_i64().is_some_and(|x| least <= x as f64 && x as f64 <= most)
            }
            Self::Text => value.is_string(),
            Self::List => value == &json!([]),
            Self::Object => value == &json!({}),
            Self::Other => false,
        }
    }
}

/// Fields of both endpoints.
const SHARED: [(&str, Kind); 29] = [
    ("model", Kind::Other),
    ("n", Kind::Integer(1.0, 16.0)),
    ("max_tokens", Kind::Other),
    ("stream", Kind::Flag),
    ("stream_options", Kind::Other),
    ("temperature", Kind::Number(0.0, 2.0)),
    ("top_p", Kind::Number(1e-9, 1.0)),
    ("top_k", Kind::Integer(-1.0, 1e18)),
    ("min_p", Kind::Number(0.0, 0.999)),
    ("repetition_penalty", Kind::Number(0.01, 10.0)),
    ("presence_penalty", Kind::Number(-2.0, 2.0)),
    ("frequency_penalty", Kind::Number(-2.0, 2.0)),
    ("logit_bias", Kind::Object),
    ("seed", Kind::Integer(-1e19, 1e19)),
    ("stop", Kind::Other),
    ("metadata", Kind::Other),
    ("stop_token_ids", Kind::List),
    ("ignore_eos", Kind::Flag),
    ("response_format", Kind::Other),
    ("vattention", Kind::Object),
    ("user", Kind::Text),
    ("safety_identifier", Kind::Text),
    ("prompt_cache_key", Kind::Text),
    ("service_tier", Kind::Other),
    ("audio", Kind::Other),
    ("prediction", Kind::Other),
    ("reasoning_effort", Kind::Other),
    ("web_search_options", Kind::Other),
    ("verbosity", Kind::Other),
];

const OF_COMPLETIONS: [(&str, Kind); 3] =
    [("echo", Kind::Flag), ("logprobs", Kind::Integer(0.0, 20.0)), ("best_of", Kind::Other)];

const OF_CHATS: [(&str, Kind); 9] = [
    ("messages", Kind::Other),
    ("logprobs", Kind::Flag),
    ("top_logprobs", Kind::Other),
    ("tools", Kind::List),
    ("tool_choice", Kind::Other),
    ("chat_template_kwargs", Kind::Other),
    ("max_completion_tokens", Kind::Other),
    ("add_generation_prompt", Kind::Flag),
    ("unknown", Kind::Other),
];

#[tokio::test]
async fn wrong_values_are_refused_and_named() {
    let mut engine = crate::common::engine_options();
    // The queue refuses valid requests, so no job runs.
    engine.max_queue = 0;
    let server = TestServer::with(engine, vattention_serve::ServerOptions::default());
    for (path, body, fields) in [
        (COMPLETIONS, completion(), [SHARED.as_slice(), &OF_COMPLETIONS].concat()),
        (CHAT, chat(), [SHARED.as_slice(), &OF_CHATS].concat()),
    ] {
        for (name, kind) in fields {
            for value in values() {
                let reply = server.post(path, &with(&body, json!({name: value}))).await;
                let status = reply.status.as_u16();
                if status == 429 {
                    assert!(kind.accepts(&value) || is_accepted(name, &value), "{name}: {value}");
                    continue;
                }
                let param = reply.json()["error"]["param"].as_str().unwrap_or("none").to_owned();
                assert!(!kind.accepts(&value), "{name}: {value}: {}", reply.text);
                let expected = if name == "model" && value.is_string() { 404 } else { 400 };
                assert_eq!(status, expected, "{name}: {value}");
                let is_named = param.starts_with(name) || param == "prompt" || param == "messages";
                assert!(is_named, "{name}: {value} {param}");
            }
            let null = with(&body, json!({name: null}));
            let status = server.post(path, &null).await.status.as_u16();
            let expected = if ["model", "messages", "unknown"].contains(&name) { 400 } else { 429 };
            assert_eq!(status, expected, "{name}: null");
        }
    }
}

/// Returns true if a field with special rules accepts one of the [`values`].
fn is_accepted(name: &str, value: &Value) -> bool {
    match name {
        "stop" => value == &json!("text") || value == &json!([]),
        "tools" => value == &json!([{"a": 1}]),
        "chat_template_kwargs" | "metadata" => value.is_object(),
        _ => false,
    }
}

#[tokio::test]
async fn ranges_include_their_ends() {
    let mut engine = crate::common::engine_options();
    engine.max_queue = 0;
    let server = TestServer::with(engine, vattention_serve::ServerOptions::default());
    for (fields, accepted) in [
        (json!({"temperature": 2}), true),
        (json!({"temperature": 2.001}), false),
        (json!({"top_p": 0}), false),
        (json!({"top_p": 1e-60}), false),
        (json!({"min_p": 1}), false),
        (json!({"min_p": 0.999_999_999_999}), false),
        (json!({"presence_penalty": -2}), true),
        (json!({"frequency_penalty": -2.1}), false),
        (json!({"repetition_penalty": 0}), false),
        (json!({"n": 16}), true),
        (json!({"n": 17}), false),
        (json!({"logprobs": 20}), true),
        (json!({"logprobs": 21}), false),
        (json!({"logit_bias": {"5": 100, "2625": -100}}), true),
        (json!({"logit_bias": {"2626": 1}}), false),
        (json!({"logit_bias": {"-1": 1}}), false),
        (json!({"logit_bias": {"a": 1}}), false),
        (json!({"logit_bias": {"5": 101}}), false),
        (json!({"logit_bias": {"5": "1"}}), false),
        (json!({"stop": vec!["a"; 16]}), true),
        (json!({"stop": vec!["a"; 17]}), false),
        (json!({"stop": [""]}), false),
        (json!({"stop": "a".repeat(1025)}), false),
        (json!({"stop_token_ids": [0, 2625]}), true),
        (json!({"stop_token_ids": [2626]}), false),
        (json!({"prompt": [0, 2625]}), true),
        (json!({"prompt": [2626]}), false),
        (json!({"prompt": [1, "a"]}), false),
        (json!({"prompt": ["a", 1]}), false),
        (json!({"prompt": [[1], 1]}), false),
        (json!({"prompt": []}), false),
        (json!({"prompt": [[]]}), false),
        (json!({"prompt": ""}), true),
        (json!({"stream_options": {"include_usage": true}}), false),
        (json!({"stream": true, "stream_options": {"include_usage": 1}}), false),
        (json!({"stream": true, "stream_options": {"other": true}}), false),
        (json!({"vattention": {"reports": true}}), false),
        (json!({"stream": true, "vattention": {"reports": true}}), true),
        (json!({"vattention": {"dense_prefix": 0}}), false),
        (json!({"vattention": {"dense_prefix": 99}}), true),
        (json!({"response_format": {"type": "text"}}), true),
        (json!({"response_format": {"type": "json_object"}}), true),
        (json!({"response_format": {"type": "xml"}}), false),
        (json!({"response_format": {"type": "json_schema"}}), false),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}), true),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}), false),
        (json!({"response_format": {"type": "text", "other": 1}}), false),
    ] {
        let reply = server.post(COMPLETIONS, &with(&completion(), fields.clone())).await;
        let expected = if accepted { 429 } else { 400 };
        assert_eq!(reply.status, expected, "{fields}: {}", reply.text);
    }
}
