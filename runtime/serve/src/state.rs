//! State that all requests share.

use crate::clock::seconds_since_1970;
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
        let started = seconds_since_1970();
        let origins = OriginRules::new(&options);
        Self { served, options, origins, counts: RequestCounts::default(), started }
    }
}
