//! Tests of texts that continue a prompt.

use serde_json::{Value, json};

use crate::common::{COMPLETIONS, TestServer, completion, with};

fn texts(answer: &Value) -> Vec<&str> {
    answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn an_answer_has_the_fields_of_the_api() {
    let server = TestServer::new();
    let answer = server.ask(COMPLETIONS, with(&completion(), json!({"ignore_eos": true}))).await;
    assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "recall");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert!(choice["logprobs"].is_null() && !choice["text"].as_str().unwrap().is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["prompt_tokens"], 6, "five words and <bos>");
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(4), &json!(10)));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    for key in ["read", "held", "largest_bar", "index_bytes"] {
        assert!(usage["vattention"].get(key).is_some(), "{key}");
    }
    let body = json!({"model": "recall", "prompt": "A", "ignore_eos": true});
    let default = server.ask(COMPLETIONS, body).await;
    assert_eq!(default["usage"]["completion_tokens"], 16);
}

#[tokio::test]
async fn texts_and_their_tokens_have_the_same_answers() {
    let server = TestServer::new();
    let tokens = server.ask("/tokenize", json!({"prompt": "The grass is green."})).await;
    let first = server.ask(COMPLETIONS, completion()).await;
    let prompt = &tokens["tokens"];
    for (prompt, count) in [
        (json!(prompt), 1),
        (json!([prompt, prompt]), 2),
        (json!(["The grass is green."]), 1),
        (json!(["The grass is green.", "The grass is green."]), 2),
    ] {
        let answer = server.ask(COMPLETIONS, with(&completion(), json!({"prompt": prompt}))).await;
        assert_eq!(texts(&answer), vec![texts(&first)[0]; count]);
        assert_eq!(answer["usage"]["prompt_tokens"], 6 * count);
    }
}

#[tokio::test]
async fn choices_have_consecutive_seeds() {
    let server = TestServer::new();
    let hot = with(&completion(), json!({"temperature": 2, "ignore_eos": true, "max_tokens": 8}));
    let three = server.ask(COMPLETIONS, with(&hot, json!({"n": 3, "seed": -1}))).await;
    let mut alone = Vec::new();
    for seed in [-1, 0, 1] {
        let answer = server.ask(COMPLETIONS, with(&hot, json!({"seed": seed}))).await;
        alone.push(texts(&answer)[0].to_owned());
    }
    assert_eq!(texts(&three), alone);
    assert_eq!(three["usage"]["prompt_tokens"], 6, "the choices share the prompt");
    assert_eq!(three["usage"]["completion_tokens"], 24);
    let unseeded = with(&hot, json!({"n": 8, "seed": null}));
    let (one, other) =
        (server.ask(COMPLETIONS, unseeded.clone()).await, server.ask(COMPLETIONS, unseeded).await);
    assert_ne!(texts(&one), texts(&other));
}

#[tokio::test]
async fn echoed_prompts_have_log_probabilities() {
    let server = TestServer::new();
    let body = with(&completion(), json!({"echo": true, "logprobs": 2, "ignore_eos": true}));
    let answer = server.ask(COMPLETIONS, body.clone()).await;
    let choice = &answer["choices"][0];
    assert!(choice["text"].as_str().unwrap().starts_with("The grass is green."));
    let list = |key: &str| choice["logprobs"][key].as_array().unwrap().clone();
    let (tokens, scores, top) = (list("tokens"), list("token_logprobs"), list("top_logprobs"));
    assert_eq!(
        (tokens.len(), scores.len(), top.len(), list("text_offset").len()),
        (10, 10, 10, 10)
    );
    assert_eq!(tokens[0], "<bos>");
    assert!(scores[0].is_null() && top[0].is_null());
    assert!(scores[1..].iter().all(|score| score.as_f64().unwrap() <= 0.0));
    for (top, (token, score)) in top.iter().zip(tokens.iter().zip(&scores)).skip(1) {
        let top = top.as_object().unwrap();
        assert!((2..=3).contains(&top.len()), "the chosen token is among the alternatives");
        assert_eq!(&top[token.as_str().unwrap()], score);
    }
    let offsets: Vec<u64> = list("text_offset").iter().map(|n| n.as_u64().unwrap()).collect();
    assert!(offsets.is_sorted() && offsets[..2] == [0, 0], "{offsets:?}");
    // lm-eval asks for one token and ignores it, or for none.
    let only = server.ask(COMPLETIONS, with(&body, json!({"max_tokens": 0}))).await;
    assert_eq!(only["choices"][0]["logprobs"]["token_logprobs"], json!(scores[..6]));
    assert_eq!(only["choices"][0]["text"], "The grass is green.");
    let plain = server.ask(COMPLETIONS, with(&completion(), json!({"echo": true}))).await;
    assert!(plain["choices"][0]["text"].as_str().unwrap().starts_with("The grass is green."));
}

#[tokio::test]
async fn the_pipeline_reads_the_prompt_after_its_dense_prefix() {
    let server = TestServer::new();
    let words = "The grass is green . ".repeat(60);
    let body = json!({"model": "recall@sparse", "prompt": words, "max_tokens": 0, "echo": true,
        "logprobs": 0, "temperature": 0});
    let dense = server.ask(COMPLETIONS, body.clone()).await;
    assert!(dense["usage"]["vattention"]["read"].is_null());
    let extension = json!({"vattention": {"dense_prefix": 2}});
    let sparse = server.ask(COMPLETIONS, with(&body, extension)).await;
    let read = sparse["usage"]["vattention"]["read"].as_f64().unwrap();
    assert!(read > 0.0 && read <= 1.0, "{read}");
}

#[tokio::test]
async fn bias_and_stops_reach_the_engine() {
    let server = TestServer::new();
    let tokens =
        server.ask("/tokenize", json!({"prompt": "sky", "add_special_tokens": false})).await;
    let token = &tokens["tokens"][0];
    let bias = json!({"logit_bias": {token.to_string(): 100}, "temperature": 0, "max_tokens": 3});
    let biased = with(&completion(), bias);
    let answer = server.ask(COMPLETIONS, biased.clone()).await;
    assert_eq!(texts(&answer)[0].trim(), "sky sky sky");
    let stopped = with(&biased, json!({"stop_token_ids": [token]}));
    let answer = server.ask(COMPLETIONS, stopped).await;
    assert_eq!((texts(&answer)[0], &answer["choices"][0]["finish_reason"]), ("", &json!("stop")));
    let stopped = with(&biased, json!({"stop": ["sky sky"], "max_tokens": 9}));
    let answer = server.ask(COMPLETIONS, stopped).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(!texts(&answer)[0].contains("sky sky"));
}
