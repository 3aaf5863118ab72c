//! `limit`: density of each pipeline, compared with the least density of independent sampling.
//!
//! The limit is for a promise on the output at the given epsilon and delta, without always-read
//! tokens: see [`compute_limits`]. A pipeline that promises something else, or does not keep its
//! promise, may read fewer tokens.

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Backend, Promise, Target};
use vattention_trace::Trace;

use super::options::PromiseOptions;
use crate::compare::chosen_layers;
use crate::metrics::MeanMax;
use crate::units::join_stages;
use crate::{
    AlwaysRead, Comparison, Entry, Result, Results, RowLimit, TraceSettings, compare,
    compute_limits,
};

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LimitStudy {
    /// Results of the pipelines.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Allowed relative error of the output.
    pub epsilon: f64,
    /// Probability with which the error may exceed epsilon.
    pub delta: f64,
    /// Limit, as a share of the visible tokens of a query head, over rows.
    pub limit: MeanMax,
    /// Limit of each layer and query head, mean over queries.
    pub heads: Vec<HeadLimit>,
}

/// Limit of one query head.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct HeadLimit {
    /// Layer.
    pub layer: usize,
    /// Query head.
    pub query_head: usize,
    /// Limit as a share of the visible tokens, mean over queries.
    pub share: f64,
}

/// Computes the limit, and compares the pipelines of `entries`. `progress` is called as by
/// [`compare`].
///
/// # Errors
/// If a setting does not fit the trace, the trace is damaged, or a pipeline cannot run on the
/// trace.
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
        Ok(compute_limits(&layer, scale, settings.count(layout), &promise, AlwaysRead::default()))
    });
    let (limits, (comparison, _)) =
        join_stages(limits, || compare(entries, trace, backend, settings, results, progress))?;
    let (mut shares, mut heads) = (Vec::new(), Vec::new());
    for ((number, layout), rows) in layers.iter().zip(limits) {
        let share = |row: &RowLimit| row.tokens / row.visible as f64;
        for query_head in 0..layout.shape.query_heads {
            let of_head = rows.iter().filter(|row| row.query_head == query_head).map(share);
            heads.push(HeadLimit { layer: *number, query_head, share: MeanMax::new(of_head).mean });
        }
        shares.extend(rows.iter().map(share));
    }
    let limit = MeanMax::new(shares.into_iter());
    Ok(LimitStudy { comparison, epsilon: epsilon.get(), delta: delta.get(), limit, heads })
}
