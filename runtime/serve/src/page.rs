//! Web page of the server, at `/`. The page loads nothing from other servers.

use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};

/// File of the page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFile {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// All files of the page.
pub(crate) const FILES: [PageFile; 5] = [
    PageFile { path: "/", kind: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    PageFile {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("page/style.css"),
    },
    PageFile {
        path: "/script.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("page/script.js"),
    },
    PageFile {
        path: "/map.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("page/map.js"),
    },
    PageFile { path: "/icon.svg", kind: "image/svg+xml", text: include_str!("page/icon.svg") },
];

/// Content security policy of the page: scripts and styles are files of the server, no other page
/// can embed the page in a frame, and the page can only send requests to the server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

impl IntoResponse for PageFile {
    fn into_response(self) -> Response {
        let headers: [(HeaderName, &str); 6] = [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.text).into_response()
    }
}
