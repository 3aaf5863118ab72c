//! Reading of request bodies, within limits of size and time.

use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use tokio_stream::StreamExt;

use crate::error::ApiError;
use crate::options::ServerOptions;

/// Reads a body whose content type is JSON.
///
/// # Errors
/// Returns an error if the body has another type or too many bytes, arrives too slowly, or ends too
/// early.
pub(crate) async fn read_body(
    request: Request,
    options: &ServerOptions,
) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    expect_json(&parts.headers)?;
    let limit = options.body_bytes;
    let length = read_text(&parts.headers, &CONTENT_LENGTH).and_then(|text| text.parse().ok());
    if length.is_some_and(|length: u64| length > limit as u64) {
        return Err(ApiError::too_large(limit));
    }
    let timeout = options.body_timeout;
    let read = tokio::time::timeout(timeout, collect(body.into_data_stream(), limit));
    read.await.unwrap_or_else(|_| Err(refuse_slow(timeout)))
}

async fn collect(mut stream: BodyDataStream, limit: usize) -> Result<Bytes, ApiError> {
    let mut body = Vec::new();
    while let Some(part) = stream.next().await {
        let part = part.map_err(|error| ApiError::malformed(format!("the body: {error}")))?;
        if body.len() + part.len() > limit {
            return Err(ApiError::too_large(limit));
        }
        body.extend_from_slice(&part);
    }
    Ok(body.into())
}

fn refuse_slow(timeout: Duration) -> ApiError {
    ApiError::slow_body(timeout.as_secs_f64())
}

/// Refuses content types other than JSON. A web page of another origin could send some of them
/// without a CORS preflight request.
fn expect_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = read_text(headers, &CONTENT_TYPE).unwrap_or_default();
    let kind = found.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ApiError::wrong_type(&found.chars().take(80).collect::<String>()))
}

fn read_text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(kind: &str, body: Body) -> Request {
        let request = Request::builder().header(CONTENT_TYPE, kind);
        request.body(body).expect("the request is valid")
    }

    #[tokio::test]
    async fn bodies_have_a_type_and_a_limit() {
        let options = ServerOptions { body_bytes: 4, ..Default::default() };
        let read =
            async |kind, text: &'static str| read_body(request(kind, text.into()), &options).await;
        assert_eq!(read("application/json; charset=utf-8", "1234").await.expect("it fits"), "1234");
        for (kind, text, status) in
            [("application/json", "12345", 413), ("text/plain", "1234", 415), ("", "1234", 415)]
        {
            let error = read(kind, text).await.expect_err("the body is wrong");
            assert_eq!(axum::response::IntoResponse::into_response(error).status(), status);
        }
    }

    #[tokio::test]
    async fn a_body_must_arrive_in_time() {
        let timeout = Duration::from_millis(1);
        let options = ServerOptions { body_timeout: timeout, ..Default::default() };
        let silent = Body::from_stream(tokio_stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read_body(request("application/json", silent), &options).await;
        let response = axum::response::IntoResponse::into_response(error.expect_err("it is slow"));
        assert_eq!(response.status(), 408);
    }
}
