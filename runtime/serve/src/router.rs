//! Routes of the server.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;

use crate::answer::{AnswerFormat, stream, whole};
use crate::body::read_body;
use crate::chat::ChatFormat;
use crate::completions::CompletionFormat;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::ServerOptions;
use crate::prepare::RequestDraft;
use crate::request_counts::name_path;
use crate::served::ServedModel;
use crate::state::App;
use crate::{chat, completions, guard, metrics, model_list, page, tokenizer_api};

/// Result of a handler.
type ApiResult = Result<Response, ApiError>;

/// Builds the routes of a server with their handlers, without a socket.
pub fn build_router(served: ServedModel, options: ServerOptions) -> Router {
    let app = Arc::new(App::new(served, options));
    let mut router = Router::new()
        .route("/health", get(report_health))
        .route("/metrics", get(report_metrics))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{id}", get(find_model))
        .route("/v1/completions", post(complete))
        .route("/v1/chat/completions", post(chat))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(describe_tokenizer));
    for file in page::FILES {
        router = router.route(file.path, get(move || std::future::ready(file)));
    }
    router
        .fallback(async |uri: Uri| ApiError::unknown_path(uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            ApiError::wrong_method(method.as_str(), uri.path())
        })
        .layer(CatchPanicLayer::custom(describe_panic))
        .layer(from_fn_with_state(Arc::clone(&app), guard::check))
        .layer(from_fn_with_state(Arc::clone(&app), count_request))
        .with_state(app)
}

async fn count_request(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = name_path(request.uri().path());
    let response = next.run(request).await;
    app.counts.add(path, response.status().as_u16());
    response
}

/// Returns the response to a request whose handler panicked. The server continues.
fn describe_panic(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the server failed at this request").into_response()
}

async fn report_health(State(app): State<Arc<App>>) -> ApiResult {
    if app.served.engine.is_shutting_down() {
        return Err(ApiError::shutting_down());
    }
    Ok(Json(json!({ "status": "ok" })).into_response())
}

async fn report_metrics(State(app): State<Arc<App>>) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::write_metrics(&app)).into_response()
}

async fn list_models(State(app): State<Arc<App>>) -> Response {
    Json(model_list::list_models(&app)).into_response()
}

async fn find_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> ApiResult {
    Ok(Json(model_list::find_model(&app, &id)?).into_response())
}

async fn describe_tokenizer(State(app): State<Arc<App>>) -> Response {
    Json(tokenizer_api::describe(&app)).into_response()
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> ApiResult {
    reply(app, request, tokenizer_api::tokenize).await
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> ApiResult {
    reply(app, request, tokenizer_api::detokenize).await
}

async fn complete(State(app): State<Arc<App>>, request: Request) -> ApiResult {
    let format = |logprobs| CompletionFormat { logprobs };
    generate(app, request, completions::read_draft, format).await
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> ApiResult {
    generate(app, request, chat::read_draft, |logprobs| ChatFormat { logprobs }).await
}

/// Reads a request, and returns the result of `answer` as JSON.
async fn reply<T: Serialize + Send + 'static>(
    app: Arc<App>,
    request: Request,
    answer: fn(&App, Fields) -> Result<T, ApiError>,
) -> ApiResult {
    let body = read_body(request, &app.options).await?;
    let found = run_blocking(move || answer(&app, Fields::parse(&body)?)).await?;
    Ok(Json(found).into_response())
}

/// Reads a generation request, submits its jobs, and returns a stream or waits for the whole
/// answer.
async fn generate<F: AnswerFormat>(
    app: Arc<App>,
    request: Request,
    read: fn(&App, Fields) -> Result<RequestDraft, ApiError>,
    format: impl FnOnce(bool) -> F,
) -> ApiResult {
    if app.served.engine.is_shutting_down() {
        return Err(ApiError::shutting_down());
    }
    let body = read_body(request, &app.options).await?;
    let shared = Arc::clone(&app);
    let prepare = move || read(&shared, Fields::parse(&body)?)?.finish(&shared);
    let prepared = run_blocking(prepare).await?;
    let jobs = prepared.plan.submit(&app.served.engine)?;
    let format = format(prepared.shows_logprobs);
    match prepared.stream {
        Some(params) => stream::respond(format, params, prepared, jobs, &app.served).await,
        None => whole::respond(&format, prepared, jobs, &app.served).await,
    }
}

/// Runs a long computation, such as the tokenization of a document, on a thread for blocking work.
/// A panic fails only this request.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(ApiError::internal("the server failed at this request")),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_the_error_of_its_request() {
        let fail = || std::future::poll_fn(|_| -> std::task::Poll<()> { panic!("on purpose") });
        let router: Router = Router::new().route("/", get(fail));
        let router = router.layer(CatchPanicLayer::custom(describe_panic));
        let request = Request::builder().uri("/").body(Body::empty()).expect("a valid request");
        let response = router.oneshot(request).await.expect("the router answers");
        assert_eq!(response.status(), 500);
        let failed = run_blocking(|| -> Result<(), ApiError> { panic!("on purpose") }).await;
        assert_eq!(failed.expect_err("the work failed").into_response().status(), 500);
    }
}
