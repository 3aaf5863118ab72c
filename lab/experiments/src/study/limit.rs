//! `limit`: what each pipeline reads, beside the fewest tokens that independent sampling could.
//!
//! The limit is for a promise of the output at the epsilon and delta given, with no token certain:
//! see [`limits`]. A pipeline that promises something else, or does not keep its promise, may read
//! less.

use serde::Serialize;
use vattention_core::{Backend, Promise, Target};
use vattention_trace::Trace;

use super::options::PromiseOptions;
use crate::compare::chosen_layers;
use crate::metrics::MeanMax;
use crate::units::both;
use crate::{
    Certain, Comparison, Entry, Result, Results, RowLimit, TraceSettings, compare, limits,
};

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct LimitStudy {
    /// How each pipeline fared.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// The relative error of the output allowed.
    pub epsilon: f64,
    /// The probability with which it may be exceeded.
    pub delta: f64,
    /// The limit, as a share of the visible tokens of a query head, over rows.
    pub limit: MeanMax,
    /// The limit of each layer and query head, mean over queries.
    pub heads: Vec<HeadLimit>,
}

/// The limit of one head.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeadLimit {
    /// The layer.
    pub layer: usize,
    /// The query head.
    pub query_head: usize,
    /// Share of the visible tokens, mean over queries.
    pub share: f64,
}

/// Finds the limit, and what the pipelines of `entries` read. `progress` as in [`compare`].
///
/// # Errors
/// A setting that does not fit the trace, a damaged trace, or a pipeline that cannot run on it.
pub fn limit(
    entries: &[Entry],
    &PromiseOptions { epsilon, delta }: &PromiseOptions,
    trace: &Trace,
    backend: &dyn Backend,
    settings: &TraceSettings,
    results: &Results,
    progress: &dyn Fn(usize, usize),
) -> Result<LimitStudy> {
    let promise = Promise::new(Target::Sdpa, epsilon, delta);
    let layers = chosen_layers(trace, settings)?;
    let keys: Vec<String> =
        layers.iter().map(|(number, _)| format!("limit of layer {number}")).collect();
    let limits = results.run(&keys, |unit| {
        let (number, layout) = &layers[unit];
        let layer = trace.layer(*number).expect("the layer was listed")?;
        let scale = trace.info().scale.unwrap_or(layout.shape.default_scale());
        Ok(limits(&layer, scale, settings.count(layout), &promise, Certain::default()))
    });
    let (limits, (comparison, _)) =
        both(limits, || compare(entries, trace, backend, settings, results, progress))?;
    let (mut shares, mut heads) = (Vec::new(), Vec::new());
    for ((number, layout), rows) in layers.iter().zip(limits) {
        let of = |row: &RowLimit| row.tokens / row.visible as f64;
        for query_head in 0..layout.shape.query_heads {
            let own = rows.iter().filter(|row| row.query_head == query_head).map(of);
            heads.push(HeadLimit { layer: *number, query_head, share: MeanMax::new(own).mean });
        }
        shares.extend(rows.iter().map(of));
    }
    let limit = MeanMax::new(shares.into_iter());
    Ok(LimitStudy { comparison, epsilon: epsilon.get(), delta: delta.get(), limit, heads })
}
