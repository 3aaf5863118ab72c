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
    /// Keys of clients; `None` serves everyone.
    pub keys: Option<ApiKeys>,
    /// Largest number of bytes of a request's body.
    pub body_bytes: usize,
    /// Time in which the header of a request must arrive; idle connections are closed after it.
    pub header_timeout: Duration,
    /// Time in which the body of a request must arrive.
    pub body_timeout: Duration,
    /// Time for running requests after the signal to shut down.
    pub shutdown_timeout: Duration,
    /// Largest number of connections; further clients wait.
    pub max_connections: usize,
    /// Largest number of texts that one request may ask for: the engine's queue.
    pub max_queue: usize,
    /// Number of tokens that dense attention reads of prompts whose log-probabilities a request
    /// asks for, unless the request has `vattention.dense_prefix`; `None` means all.
    pub dense_prefix: Option<usize>,
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
