//! Tests of answers in conversations.

use serde_json::{Value, json};
use vattention_serve::{ServerOptions, build_router};

use crate::common::{CHAT, COMPLETIONS, TestServer, chat, engine_options, serve, with};

#[tokio::test]
async fn an_answer_is_a_message() {
    let server = TestServer::new();
    let body = with(&chat(), json!({"logprobs": true, "top_logprobs": 2, "ignore_eos": true}));
    let answer = server.ask(CHAT, body).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("chat.completion"), &json!("recall@dense"))
    );
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["refusal"].is_null());
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let text = token["token"].as_str().unwrap();
        assert_eq!(token["bytes"], json!(text.as_bytes()));
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    assert_eq!(answer["usage"]["vattention"]["read"], 1.0, "by dense attention");
}

/// Returns the number of tokens of the prompt, which shows what the template rendered.
async fn prompt_tokens(server: &TestServer, fields: Value) -> u64 {
    let answer = server.ask(CHAT, with(&chat(), fields)).await;
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[tokio::test]
async fn the_template_renders_the_whole_request() {
    let server = TestServer::new();
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "The grass"},
        {"type": "text", "text": "is green."}]}]);
    let plain = prompt_tokens(&server, json!({})).await;
    assert_eq!(prompt_tokens(&server, json!({"messages": parts})).await, plain);
    assert_eq!(prompt_tokens(&server, json!({"tools": [tool]})).await, plain + 1);
    let refused = json!({"tools": [tool], "tool_choice": "none"});
    assert_eq!(prompt_tokens(&server, refused).await, plain);
    let tool_first = json!({"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]});
    let reply = server.post(CHAT, &with(&chat(), tool_first)).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!("messages")));
    assert!(reply.text.contains("no tool first") && !reply.text.contains("chat_template.jinja"));
}

#[tokio::test]
async fn newer_and_older_limits_are_the_same() {
    let server = TestServer::new();
    let body = json!({"max_completion_tokens": 4, "ignore_eos": true});
    let answer = server.ask(CHAT, with(&chat(), body)).await;
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    let both = with(&chat(), json!({"max_completion_tokens": 5}));
    assert_eq!(server.post(CHAT, &both).await.json()["error"]["param"], "max_completion_tokens");
}

#[tokio::test]
async fn a_model_without_a_template_only_completes() {
    let served = serve(engine_options(), None);
    let engine = served.engine.clone();
    let server = TestServer { router: build_router(served, ServerOptions::default()), engine };
    let reply = server.post(CHAT, &chat()).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!("messages")));
    server.ask(COMPLETIONS, crate::common::completion()).await;
}
