//! Tests of hosts, origins and keys.

use axum::body::Body;
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use vattention_serve::{ApiKeys, ServerOptions};

use crate::common::{COMPLETIONS, TestServer, completion, engine_options, request};

async fn status(
    server: &TestServer,
    headers: &[(axum::http::HeaderName, &str)],
    path: &str,
) -> u16 {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    server.send(request.body(Body::empty()).unwrap()).await.status.as_u16()
}

#[tokio::test]
async fn other_hosts_and_origins_are_403() {
    let server = TestServer::new();
    for path in ["/", "/health", "/v1/models", "/metrics", "/none"] {
        assert_eq!(status(&server, &[(HOST, "evil.example")], path).await, 403);
        assert_eq!(status(&server, &[], path).await, 403);
        let headers = [(HOST, "localhost:8080"), (ORIGIN, "http://evil.example")];
        assert_eq!(status(&server, &headers, path).await, 403);
    }
    let own = [(HOST, "127.0.0.1:8080"), (ORIGIN, "http://127.0.0.1:8080")];
    assert_eq!(status(&server, &own, "/v1/models").await, 200);
}

#[tokio::test]
async fn allowed_origins_get_permissions() {
    let origin = "https://app.example";
    let options = ServerOptions { allow_origins: vec![origin.into()], ..ServerOptions::default() };
    let server = TestServer::with(engine_options(), options);
    let ask = request("OPTIONS", COMPLETIONS).header(ORIGIN, origin).body(Body::empty()).unwrap();
    let reply = server.send(ask).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["access-control-allow-methods"]),
        (204, &"GET, POST".parse().unwrap())
    );
    let post = request("POST", COMPLETIONS).header(ORIGIN, origin);
    let post = post.header(CONTENT_TYPE, "application/json").body(completion().to_string().into());
    let reply = server.send(post.unwrap()).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["access-control-allow-origin"], origin);
    let plain = server.get("/v1/models").await;
    assert!(!plain.headers.contains_key("access-control-allow-origin"));
    let stranger = request("OPTIONS", COMPLETIONS).header(ORIGIN, "https://b.example");
    let reply = server.send(stranger.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status, 403);
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn keys_protect_all_but_health_and_the_page() {
    let keys = Some(ApiKeys::parse("right\nother\n").unwrap());
    let options = ServerOptions { keys, ..ServerOptions::default() };
    let server = TestServer::with(engine_options(), options);
    let local = (HOST, "localhost");
    for path in ["/v1/models", "/metrics", "/tokenizer_info", "/none", COMPLETIONS] {
        assert_eq!(status(&server, std::slice::from_ref(&local), path).await, 401, "{path}");
        let wrong = [local.clone(), (AUTHORIZATION, "Bearer wrong")];
        assert_eq!(status(&server, &wrong, path).await, 401, "{path}");
    }
    for path in ["/health", "/", "/script.js"] {
        assert_eq!(status(&server, std::slice::from_ref(&local), path).await, 200, "{path}");
    }
    for key in ["Bearer right", "Bearer other"] {
        assert_eq!(
            status(&server, &[local.clone(), (AUTHORIZATION, key)], "/v1/models").await,
            200
        );
    }
    let reply = server.get("/v1/models").await;
    assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
    assert_eq!(reply.headers["www-authenticate"], "Bearer");
}
