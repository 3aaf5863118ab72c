//! Tests of the errors of the API.

use serde_json::{Value, json};
use vattention_serve::ServerOptions;

use crate::common::{
    CHAT, COMPLETIONS, Reply, TestServer, chat, completion, engine_options, request, with,
};

/// Returns status, parameter and code of an error.
fn describe(reply: &Reply) -> (u16, Value, Value) {
    let error = &reply.json()["error"];
    assert!(!error["message"].as_str().unwrap().is_empty() && error["type"].is_string());
    (reply.status.as_u16(), error["param"].clone(), error["code"].clone())
}

#[tokio::test]
async fn errors_have_a_status_a_parameter_and_a_code() {
    let server = TestServer::new();
    for (path, body, expected) in [
        (
            COMPLETIONS,
            with(&completion(), json!({"model": "other"})),
            (404, "model", "model_not_found"),
        ),
        (CHAT, with(&chat(), json!({"model": "recall@none"})), (404, "model", "model_not_found")),
        ("/tokenize", json!({"prompt": "a", "model": "b"}), (404, "model", "model_not_found")),
        (
            COMPLETIONS,
            with(&completion(), json!({"max_tokens": 16384})),
            (400, "prompt", "context_length_exceeded"),
        ),
        (
            CHAT,
            with(&chat(), json!({"max_tokens": i64::MAX})),
            (400, "messages", "context_length_exceeded"),
        ),
        (
            COMPLETIONS,
            json!({"model": "recall", "prompt": "sky ".repeat(16384)}),
            (400, "prompt", "context_length_exceeded"),
        ),
        (
            COMPLETIONS,
            with(&completion(), json!({"guess": null})),
            (400, "guess", "unsupported_parameter"),
        ),
        (
            COMPLETIONS,
            with(&completion(), json!({"suffix": "b"})),
            (400, "suffix", "unsupported_parameter"),
        ),
        (
            CHAT,
            with(&chat(), json!({"tool_choice": "required"})),
            (400, "tool_choice", "unsupported_parameter"),
        ),
        (CHAT, with(&chat(), json!({"echo": true})), (400, "echo", "unsupported_parameter")),
        (
            COMPLETIONS,
            with(&completion(), json!({"vattention": {"speed": 9}})),
            (400, "vattention.speed", "unsupported_parameter"),
        ),
    ] {
        let found = describe(&server.post(path, &body).await);
        assert_eq!(found, (expected.0, json!(expected.1), json!(expected.2)));
    }
}

#[tokio::test]
async fn a_schema_that_cannot_be_compiled_is_an_error_of_its_parameter() {
    let server = TestServer::new();
    let schema = json!({"name": "n", "schema": {"type": "novel"}});
    let format = json!({"type": "json_schema", "json_schema": schema});
    for (path, body) in [(COMPLETIONS, completion()), (CHAT, chat())] {
        let body = with(&body, json!({"response_format": format}));
        let reply = server.post(path, &body).await;
        assert_eq!(describe(&reply), (400, json!("response_format"), Value::Null));
    }
}

/// The engine's thread would stall all streams if it compiled grammars.
#[tokio::test]
async fn schemas_are_compiled_before_the_engine_sees_their_jobs() {
    let mut engine = engine_options();
    engine.max_queue = 0;
    let server = TestServer::with(engine, ServerOptions::default());
    for (kind, expected) in [("novel", 400), ("integer", 429)] {
        let schema = json!({"name": "n", "schema": {"type": kind}});
        let format = json!({"type": "json_schema", "json_schema": schema});
        let body = with(&completion(), json!({"response_format": format}));
        assert_eq!(server.post(COMPLETIONS, &body).await.status, expected, "{kind}");
    }
}

#[tokio::test]
async fn fields_that_must_exist_are_named() {
    let server = TestServer::new();
    for (path, body, name) in [
        (COMPLETIONS, completion(), "model"),
        (COMPLETIONS, completion(), "prompt"),
        (CHAT, chat(), "model"),
        (CHAT, chat(), "messages"),
        ("/tokenize", json!({"prompt": "a"}), "prompt"),
        ("/detokenize", json!({"tokens": []}), "tokens"),
    ] {
        let mut body = body;
        body.as_object_mut().unwrap().remove(name);
        let (status, param, _) = describe(&server.post(path, &body).await);
        assert_eq!((status, param), (400, json!(name)), "{path}");
    }
}

#[tokio::test]
async fn bodies_that_are_no_objects_are_refused() {
    let server = TestServer::new();
    let whole = completion().to_string();
    for body in
        ["", "null", "[]", "1", "\"a\"", "{", "{\"a\":}", "\u{feff}{}", "{\"prompt\":\"\\ud800\"}"]
    {
        let (status, param, _) = describe(&server.post_text(COMPLETIONS, body).await);
        assert_eq!((status, param), (400, Value::Null), "{body}");
    }
    for end in 0..whole.len() {
        assert_eq!(server.post_text(COMPLETIONS, whole[..end].to_owned()).await.status, 400);
    }
    let deep = format!("{{\"metadata\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.post_text(COMPLETIONS, deep).await.status, 400);
    assert_eq!(server.post_text(COMPLETIONS, vec![0xff, 0xfe, b'{']).await.status, 400);
}

#[tokio::test]
async fn paths_methods_and_types_are_checked() {
    let server = TestServer::new();
    assert_eq!(describe(&server.get("/v1/nothing").await).0, 404);
    assert_eq!(describe(&server.get("/../../etc/passwd").await).0, 404);
    let reply = server.get(COMPLETIONS).await;
    assert_eq!((describe(&reply).0, &reply.headers["allow"]), (405, &"POST".parse().unwrap()));
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let body = completion().to_string();
        let request = request("POST", COMPLETIONS).header("content-type", kind).body(body.into());
        assert_eq!(describe(&server.send(request.unwrap()).await).0, 415);
    }
}

#[tokio::test]
async fn large_bodies_and_sequences_are_refused() {
    let options = ServerOptions { body_bytes: 200, ..ServerOptions::default() };
    let mut engine = engine_options();
    // Six tokens of the prompt and four of the answer fit; one token has 3 layers with 2 KV heads.
    engine.sequence_bytes = 64 * 1024;
    let server = TestServer::with(engine, options);
    server.ask(COMPLETIONS, completion()).await;
    let long = with(&completion(), json!({"user": "a".repeat(200)}));
    assert_eq!(describe(&server.post(COMPLETIONS, &long).await).0, 413);
    let many = with(&completion(), json!({"max_tokens": 10000}));
    let found = describe(&server.post(COMPLETIONS, &many).await);
    assert_eq!(found, (400, json!("max_tokens"), json!("sequence_too_large")));
}

#[tokio::test]
async fn requests_for_too_many_texts_are_refused() {
    let options = ServerOptions { max_queue: 4, ..ServerOptions::default() };
    let server = TestServer::with(engine_options(), options);
    let fields = json!({"prompt": ["a", "b", "c"], "n": 2});
    let (status, param, _) =
        describe(&server.post(COMPLETIONS, &with(&completion(), fields)).await);
    assert_eq!((status, param), (400, json!("prompt")));
}

#[tokio::test]
async fn a_full_queue_is_429() {
    let mut engine = engine_options();
    engine.max_queue = 0;
    let server = TestServer::with(engine, ServerOptions::default());
    let reply = server.post(COMPLETIONS, &completion()).await;
    assert_eq!(describe(&reply), (429, Value::Null, json!("queue_full")));
    assert_eq!(reply.headers["retry-after"], "1");
}

#[tokio::test]
async fn a_server_that_shuts_down_is_503() {
    let server = TestServer::new();
    server.engine.shut_down(std::time::Duration::ZERO).await;
    for (path, body) in [(COMPLETIONS, completion()), (CHAT, chat())] {
        assert_eq!(describe(&server.post(path, &body).await).0, 503);
    }
    assert_eq!(describe(&server.get("/health").await).0, 503);
}
