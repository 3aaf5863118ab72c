//! Options of a server.

use std::time::Duration;

use crate::keys::ApiKeys;

/// Addresses, limits and keys of a server.
#[derive(Debug)]
pub struct ServerOptions {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 chooses a free one.
    pub port: u16,
    /// Further names that the header `Host` may have.
    pub allow_hosts: Vec<String>,
    /// Origins of web pages that may use the server, such as `https://example.org`.
    pub allow_origins: Vec<String>,
    /// API keys that the server accepts; `None` accepts requests without a key.
    pub keys: Option<ApiKeys>,
    /// Maximum size of a request's body, in bytes.
    pub body_bytes: usize,
    /// Time in which the header of a request must arrive; idle connections are closed after the
    /// same time.
    pub header_timeout: Duration,
    /// Time in which the body of a request must arrive.
    pub body_timeout: Duration,
    /// Time for running requests after the signal to shut down.
    pub shutdown_timeout: Duration,
    /// Maximum number of open connections; further clients wait.
    pub max_connections: usize,
    /// Maximum number of texts of one request, equal to the length of the engine's queue.
    pub max_queue: usize,
    /// Number of prompt tokens that dense attention prefills if a request asks for the
    /// log-probabilities of its prompt and does not set `vattention.dense_prefix`; `None` means
    /// all.
    pub dense_prefix: Option<usize>,
}

impl ServerOptions {
    /// Returns the host without the brackets of an IPv6 address in a URL.
    pub(crate) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8080,
            allow_hosts: Vec::new(),
            allow_origins: Vec::new(),
            keys: None,
            body_bytes: 8 << 20,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(1),
            shutdown_timeout: Duration::from_secs(10),
            max_connections: 1024,
            max_queue: 256,
            dense_prefix: None,
        }
    }
}
