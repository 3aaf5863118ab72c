//! Errors of the API: a status, and a JSON object that names the parameter.

use axum::Json;
use axum::http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::engine::{JobError, SubmitError};

/// Error that a client receives instead of an answer.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: Box<ErrorBody>,
    header: Option<(HeaderName, &'static str)>,
}

/// Object `error` of the API.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ErrorBody {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

/// Body of an error response, or error event of a stream.
#[derive(Serialize)]
pub(crate) struct ErrorDocument<'a> {
    error: &'a ErrorBody,
}

/// Name of the parameter that a grammar comes from.
pub(crate) const RESPONSE_FORMAT: &str = "response_format";

/// Value of `type` for errors that the client can avoid.
const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let body = ErrorBody { message: message.into(), r#type: kind, param: None, code: None };
        Self { status, body: Box::new(body), header: None }
    }

    fn with_code(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }

    /// Returns an error 400 about a parameter.
    pub(crate) fn parameter(name: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        let name = name.into();
        let message = format!("{name}: {reason}");
        let mut error = Self::new(StatusCode::BAD_REQUEST, INVALID, message);
        error.body.param = Some(name);
        error
    }

    /// Returns an error 400 about a parameter that the API does not have, or does not support.
    pub(crate) fn unsupported(name: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::parameter(name, reason).with_code("unsupported_parameter")
    }

    /// Returns an error 400 about the request as a whole.
    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, reason)
    }

    /// Returns an error 400 for a prompt that, with its answer, exceeds the model's context.
    pub(crate) fn too_long(parameter: &str, reason: impl std::fmt::Display) -> Self {
        Self::parameter(parameter, reason).with_code("context_length_exceeded")
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "no valid API key; expected the header `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, INVALID, message)
            .with_code("invalid_api_key")
            .with_header(WWW_AUTHENTICATE, "Bearer")
    }

    /// Returns an error 403 about the header `Host` or `Origin`.
    pub(crate) fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", reason)
    }

    pub(crate) fn unknown_model(found: &str, known: &[&str]) -> Self {
        let message = format!("model: no `{found}`; expected one of {}", known.join(", "));
        let mut error =
            Self::new(StatusCode::NOT_FOUND, INVALID, message).with_code("model_not_found");
        error.body.param = Some("model".into());
        error
    }

    pub(crate) fn unknown_path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, format!("no path {path:?}"))
    }

    pub(crate) fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path}: the method {method} is not supported");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, message)
    }

    pub(crate) fn slow_body(seconds: f64) -> Self {
        let message = format!("the body did not arrive within {seconds} seconds");
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).with_header(CONNECTION, "close")
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message).with_header(CONNECTION, "close")
    }

    pub(crate) fn wrong_type(found: &str) -> Self {
        let message = format!("content-type: found {found:?}; expected application/json");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(crate) fn shutting_down() -> Self {
        let message = "the server is shutting down";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            .with_code("shutting_down")
            .with_header(RETRY_AFTER, "10")
    }

    fn queue_full() -> Self {
        let message = "the queue is full; try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code("queue_full")
            .with_header(RETRY_AFTER, "1")
    }

    /// Returns the JSON object of the error.
    pub(crate) fn document(&self) -> ErrorDocument<'_> {
        ErrorDocument { error: &self.body }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull => Self::queue_full(),
            SubmitError::TooLarge { .. } => {
                Self::parameter("max_tokens", error).with_code("sequence_too_large")
            }
            SubmitError::ShuttingDown => Self::shutting_down(),
        }
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Input(reason) => Self::malformed(reason),
            JobError::Grammar(reason) => Self::parameter(RESPONSE_FORMAT, reason),
            JobError::Internal(reason) => Self::internal(reason),
            JobError::ShuttingDown => Self::shutting_down(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.document())).into_response();
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Describes an error without the paths of the model's files, which clients must not see.
pub(crate) fn describe_failure(error: &vattention_llm::Error) -> String {
    match error {
        vattention_llm::Error::Checkpoint { reason, .. }
        | vattention_llm::Error::Input { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}
