//! Host names of the server, and origins of web pages that may send requests to it.
//!
//! Without these checks, any web page could use a server on the machine of its visitor: directly,
//! or through a host name that resolves to 127.0.0.1 (DNS rebinding).

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName};

use crate::error::ApiError;
use crate::options::ServerOptions;

/// Names that always refer to this machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Rules for the headers `Host` and `Origin`.
#[derive(Debug)]
pub(crate) struct OriginRules {
    names: Vec<String>,
    /// True if the server listens on all addresses of the machine. Any IP address is then accepted
    /// as a host, because DNS rebinding needs a name.
    any_address: bool,
    origins: Vec<String>,
}

impl OriginRules {
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let own = options.bare_host();
        let given = options.allow_hosts.iter().map(String::as_str).chain([own]);
        let names = LOOPBACK.into_iter().chain(given).map(str::to_ascii_lowercase).collect();
        let any_address = own.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
        Self { names, any_address, origins: options.allow_origins.clone() }
    }

    /// Checks both headers. Returns the origin if it is one of [`ServerOptions::allow_origins`],
    /// whose pages need CORS headers in the response.
    pub(crate) fn check<'h>(&self, headers: &'h HeaderMap) -> Result<Option<&'h str>, ApiError> {
        let host = read_header(headers, &HOST)?.unwrap_or_default();
        let name = strip_port(host).to_ascii_lowercase();
        let is_address = self.any_address && name.parse::<IpAddr>().is_ok();
        if !is_address && !self.names.contains(&name) {
            let reason = "the server does not have this name; --allow-host NAME adds it";
            return Err(ApiError::forbidden(format!("Host: found {name:?}; {reason}")));
        }
        let Some(origin) = read_header(headers, &ORIGIN)? else { return Ok(None) };
        if self.origins.iter().any(|known| known == origin) {
            return Ok(Some(origin));
        }
        if origin.split_once("://").is_some_and(|(_, part)| part.eq_ignore_ascii_case(host)) {
            return Ok(None);
        }
        let reason = "pages of other origins are not allowed; --allow-origin ORIGIN allows one";
        Err(ApiError::forbidden(format!("Origin: found {origin:?}; {reason}")))
    }
}

fn read_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let refuse = |_| ApiError::forbidden(format!("{name}: expected printable ASCII"));
    value.to_str().map(Some).map_err(refuse)
}

/// Returns the host of an authority, without its port and without the brackets of an IPv6 address.
fn strip_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn check(options: &ServerOptions, host: &'static str, origin: Option<&'static str>) -> bool {
        let host = [(HOST, HeaderValue::from_static(host))];
        let origin = origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin)));
        let headers = host.into_iter().chain(origin).collect();
        OriginRules::new(options).check(&headers).is_ok()
    }

    #[test]
    fn only_names_of_the_server_are_hosts() {
        let local = ServerOptions { allow_hosts: vec!["Box.lan".into()], ..Default::default() };
        for host in ["localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST", "box.lan:1"] {
            assert!(check(&local, host, None), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "", "[::1", "::1"] {
            assert!(!check(&local, host, None), "{host}");
        }
        let open = ServerOptions { host: "0.0.0.0".into(), ..Default::default() };
        assert!(check(&open, "10.0.0.1:8080", None));
        assert!(!check(&open, "evil.example", None));
        assert!(OriginRules::new(&local).check(&HeaderMap::new()).is_err());
    }

    #[test]
    fn only_own_and_allowed_pages_are_origins() {
        let options =
            ServerOptions { allow_origins: vec!["https://a.example".into()], ..Default::default() };
        let from = |origin| check(&options, "localhost:8080", Some(origin));
        assert!(from("http://localhost:8080") && from("https://a.example"));
        for origin in ["http://localhost:3000", "https://b.example", "null", "http://evil.example"]
        {
            assert!(!from(origin), "{origin}");
        }
    }
}
