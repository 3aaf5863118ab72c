//! Tests of the tokenizer as lm-eval uses it, the list of models, and metrics.

use serde_json::json;

use crate::common::{COMPLETIONS, TestServer, completion};

#[tokio::test]
async fn a_remote_tokenizer_encodes_and_decodes() {
    let server = TestServer::new();
    let text = "The grass is green.";
    let all = server.ask("/tokenize", json!({"prompt": text})).await;
    let body = json!({"prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let plain = server.ask("/tokenize", body).await;
    assert_eq!((&all["count"], &plain["count"]), (&json!(6), &json!(5)));
    assert_eq!(plain["token_strs"], json!(["The", "grass", "is", "green", "."]));
    assert_eq!(plain["max_model_len"], 16384);
    let decoded = server.ask("/detokenize", json!({"tokens": all["tokens"]})).await;
    assert_eq!(decoded["prompt"], "<bos> The grass is green .");
    let messages = json!([{"role": "user", "content": text}]);
    let chat = server.ask("/tokenize", json!({"messages": messages, "model": "recall"})).await;
    assert_eq!(chat["tokens"], all["tokens"]);
    let info = server.get("/tokenizer_info").await.json();
    assert_eq!((&info["bos_token"], &info["eos_token"]), (&json!("<bos>"), &json!(".")));
    assert!(info["pad_token"].is_null());
    assert!(info["chat_template"].as_str().unwrap().contains("bos_token"));
}

#[tokio::test]
async fn each_pipeline_is_a_model() {
    let server = TestServer::new();
    let list = server.get("/v1/models").await.json();
    let models = list["data"].as_array().unwrap().clone();
    let ids: Vec<&str> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["recall", "recall@sparse", "recall@dense"]);
    let pipelines = models.iter().map(|model| model["vattention"]["pipeline"].as_str().unwrap());
    assert!(pipelines.eq(["sparse", "sparse", "dense"]));
    for id in ["recall@dense", "recall%40dense"] {
        assert_eq!(server.get(&format!("/v1/models/{id}")).await.json(), models[2]);
    }
    assert_eq!(server.get("/v1/models/other").await.json()["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn metrics_count_requests_and_tokens() {
    let server = TestServer::new();
    assert_eq!(server.get("/health").await.json(), json!({"status": "ok"}));
    let body = crate::common::with(&completion(), json!({"ignore_eos": true}));
    server.ask(COMPLETIONS, body).await;
    server.get("/none").await;
    let reply = server.get("/metrics").await;
    assert!(
        reply.headers["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4")
    );
    for line in [
        "vattention_requests_total{path=\"/v1/completions\",status=\"200\"} 1",
        "vattention_requests_total{path=\"other\",status=\"404\"} 1",
        "vattention_prompt_tokens_total 6",
        "vattention_generated_tokens_total 4",
        "vattention_cancelled_total 0",
        "vattention_running 0",
        "vattention_steps_total{pipeline=\"sparse\"} 3",
        "vattention_steps_total{pipeline=\"dense\"} 0",
    ] {
        assert!(reply.text.lines().any(|found| found == line), "{line}:\n{}", reply.text);
    }
    assert!(reply.text.contains("\nvattention_density{pipeline=\"sparse\"} "));
    assert!(!reply.text.contains("vattention_density{pipeline=\"dense\"}"));
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere() {
    let server = TestServer::new();
    for path in ["/", "/script.js", "/style.css", "/map.js", "/icon.svg"] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        let policy = reply.headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'")
                && !policy.contains("unsafe")
        );
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    }
}
