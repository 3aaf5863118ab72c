//! Tests of answers token by token.

use serde_json::{Value, json};

use crate::common::{CHAT, COMPLETIONS, TestServer, chat, completion, with};

fn joined(events: &[Value], index: usize, place: fn(&Value) -> &Value) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    let choices = choices.filter(|choice| choice["index"] == index);
    choices.filter_map(|choice| place(choice).as_str()).collect()
}

#[tokio::test]
async fn a_streamed_chat_has_the_text_of_a_whole_one() {
    let server = TestServer::new();
    let body = with(&chat(), json!({"ignore_eos": true, "n": 2, "max_tokens": 12}));
    let whole = server.ask(CHAT, body.clone()).await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = server.post(CHAT, &with(&body, options)).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    let events = reply.events();
    for index in 0..2 {
        let text = joined(&events, index, |choice| &choice["delta"]["content"]);
        assert_eq!(text, whole["choices"][index]["message"]["content"].as_str().unwrap());
        let reasons = joined(&events, index, |choice| &choice["finish_reason"]);
        assert_eq!(reasons, "length");
    }
    let (last, rest) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    assert!(rest.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert_eq!(rest[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
}

#[tokio::test]
async fn a_streamed_completion_has_the_scores_of_a_whole_one() {
    let server = TestServer::new();
    let body = with(&completion(), json!({"echo": true, "logprobs": 3, "ignore_eos": true}));
    let whole = server.ask(COMPLETIONS, body.clone()).await;
    let events = server.post(COMPLETIONS, &with(&body, json!({"stream": true}))).await.events();
    assert_eq!(
        joined(&events, 0, |choice| &choice["text"]),
        whole["choices"][0]["text"].as_str().unwrap()
    );
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let lists =
            events.iter().filter_map(|event| event["choices"][0]["logprobs"][key].as_array());
        let all: Vec<Value> = lists.flatten().cloned().collect();
        assert_eq!(json!(all), whole["choices"][0]["logprobs"][key], "{key}");
    }
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let plain = json!({"stream": true, "echo": true, "logprobs": null});
    let events = server.post(COMPLETIONS, &with(&body, plain)).await.events();
    assert_eq!(events[0]["choices"][0]["text"], "The grass is green.");
}

#[tokio::test]
async fn reports_show_each_layer_and_head() {
    let server = TestServer::new();
    let fields = json!({"model": "recall@sparse", "stream": true, "ignore_eos": true,
        "vattention": {"reports": true}});
    let events = server.post(CHAT, &with(&chat(), fields)).await.events();
    let reports: Vec<&Value> = events.iter().filter_map(|event| event.get("vattention")).collect();
    assert_eq!(reports.len(), 3, "the first of four tokens has no step by the pipeline");
    for report in reports {
        assert_eq!(report["density"].as_array().unwrap().len(), 3);
        assert!(report["density"][2].as_array().unwrap().len() == 2 && report.get("bar").is_some());
    }
}
