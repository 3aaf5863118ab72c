//! Checks of the host, origin and key of a request, before its body is read.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::page::FILES;
use crate::state::App;

/// Path that needs no key, in addition to the files of the page.
const HEALTH: &str = "/health";

/// Refuses requests for unknown hosts, from unknown origins, and without a valid key; passes on all
/// others.
pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = match app.origins.check(request.headers()) {
        Ok(origin) => origin.and_then(|origin| HeaderValue::from_str(origin).ok()),
        Err(error) => return error.into_response(),
    };
    let is_preflight = request.method() == Method::OPTIONS && origin.is_some();
    let mut response = if is_preflight {
        permit()
    } else if is_refused(&app, &request) {
        ApiError::unauthorized().into_response()
    } else {
        next.run(request).await
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().append(VARY, HeaderValue::from_static("origin"));
    }
    response
}

fn is_refused(app: &App, request: &Request) -> bool {
    let path = request.uri().path();
    let is_open = path == HEALTH || FILES.iter().any(|file| file.path == path);
    let keys = app.options.keys.as_ref();
    !is_open && keys.is_some_and(|keys| !keys.accept(request.headers()))
}

/// Returns the answer to a CORS preflight request from an allowed origin.
fn permit() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"),
        (ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}
