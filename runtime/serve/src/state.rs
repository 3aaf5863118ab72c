//! State that all requests share.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::options::ServerOptions;
use crate::origin::OriginRules;
use crate::request_counts::RequestCounts;
use crate::served::ServedModel;

/// Served model, options, and counters of requests.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) served: ServedModel,
    pub(crate) options: ServerOptions,
    pub(crate) origins: OriginRules,
    pub(crate) counts: RequestCounts,
    /// Time of the start, in seconds since 1970.
    pub(crate) started: u64,
}

impl App {
    pub(crate) fn new(served: ServedModel, options: ServerOptions) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let origins = OriginRules::new(&options);
        Self { served, options, origins, counts: RequestCounts::default(), started }
    }
}
