//! Test servers without a socket, and requests to them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;
use vattention_backends::Cpu;
use vattention_config::Loader;
use vattention_core::{PipelineConfig, Storage};
use vattention_llm::{ChatTemplate, Config, Model, Tokenizer};
use vattention_serve::{
    DENSE, EngineHandle, EngineOptions, ServedModel, ServerOptions, build_router, start_engine,
};
use {vattention_estimators as _, vattention_samplers as _, vattention_selectors as _};

/// Template that renders a word if there are tools, so that tests can check that tools arrive.
const TEMPLATE: &str = "\
{{- bos_token }}\
{% if messages[0].role == 'tool' %}{{ raise_exception('no tool first') }}{% endif %}\
{% if tools %}A {% endif %}{% for message in messages %}{{ message.content }} {% endfor %}";

/// Answer to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Returns the JSON objects of a stream; the last event must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let events: Vec<&str> =
            self.text.split_terminator("\n\n").map(|event| &event["data: ".len()..]).collect();
        let (last, rest) = events.split_last().unwrap();
        assert_eq!(*last, "[DONE]");
        rest.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// Server without a socket.
pub(crate) struct TestServer {
    pub(crate) router: Router,
    pub(crate) engine: EngineHandle,
}

fn recall() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/recall")
}

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    Arc::clone(MODEL.get_or_init(|| Arc::new(Model::open(&recall()).unwrap())))
}

pub(crate) fn template() -> ChatTemplate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let config = "tokenizer_config.json";
    std::fs::copy(recall().join(config), folder.path().join(config)).unwrap();
    ChatTemplate::open(folder.path()).unwrap().unwrap()
}

fn pipelines() -> Vec<Arc<PipelineConfig>> {
    let file = recall().join("pipelines/vattention-oracle-top-k.toml");
    vec![Loader::default().load(&file).unwrap(), Arc::default()]
}

pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions {
        pipelines: pipelines(),
        max_sequences: 4,
        max_queue: 64,
        sequence_bytes: 1 << 30,
        cache_bytes: 0,
        cache_dir: None,
        cache_key: String::new(),
        storage: Storage::F32,
        block: 64,
        when_idle: || {},
    }
}

/// Returns the model with its engine, under the ids `recall`, `recall@sparse` and `recall@dense`.
pub(crate) fn serve(options: EngineOptions, template: Option<ChatTemplate>) -> ServedModel {
    let config = Config::open(&recall()).unwrap();
    let tokenizer = Arc::new(Tokenizer::open(&recall(), &config).unwrap());
    let backend = Arc::new(Cpu::default());
    let engine = start_engine(model(), Arc::clone(&tokenizer), backend, options).unwrap();
    let pipelines = vec!["sparse".to_owned(), DENSE.to_owned()];
    ServedModel { name: "recall".into(), pipelines, config, tokenizer, template, engine }
}

impl TestServer {
    pub(crate) fn new() -> Self {
        Self::with(engine_options(), ServerOptions::default())
    }

    pub(crate) fn with(engine: EngineOptions, options: ServerOptions) -> Self {
        let served = serve(engine, Some(template()));
        Self { engine: served.engine.clone(), router: build_router(served, options) }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(request("GET", path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Body>) -> Reply {
        let request = request("POST", path).header(CONTENT_TYPE, "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, body.to_string()).await
    }

    /// Posts a valid body, and returns the answer.
    pub(crate) async fn ask(&self, path: &str, body: Value) -> Value {
        let reply = self.post(path, &body).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text);
        reply.json()
    }
}

pub(crate) fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header(HOST, "localhost:8080")
}

/// Returns a body with additional or replaced fields.
pub(crate) fn with(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

pub(crate) fn completion() -> Value {
    json!({"model": "recall", "prompt": "The grass is green.", "max_tokens": 4, "seed": 7})
}

pub(crate) fn chat() -> Value {
    let messages = json!([{"role": "user", "content": "The grass is green."}]);
    json!({"model": "recall@dense", "messages": messages, "max_tokens": 4, "seed": 7})
}

pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";
