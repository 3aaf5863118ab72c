//! `calibration`: whether error bars are as sure as they say, at several confidences.
//!
//! A bar at confidence `1 − δ` may miss the truth in a share δ of the samples of a head at most. Each
//! pipeline is made to claim each confidence, and draws samples of every row. Bars that are too wide
//! are no fault: each head's count is judged by its exact binomial probability.

use std::sync::Arc;

use serde::Serialize;
use vattention_core::{Fraction, PipelineConfig};

use super::measure::Study;
use super::options::CalibrationOptions;
use crate::compare::chosen_layers;
use crate::metrics::mean;
use crate::metrics::{Bars, BarsSummary, Evidence, LEVEL, binomial};
use crate::verify::{HeadCount, at_delta, try_all};
use crate::{Entry, Error, Result};

/// What the study found.
#[derive(Clone, Debug, Serialize)]
pub struct Calibration {
    /// The trace's file, as given.
    pub trace: String,
    /// Samples of each head, spread over its queries.
    pub trials: u32,
    /// Each pipeline.
    pub pipelines: Vec<Calibrated>,
}

/// The error bars of one pipeline.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// Its name.
    pub pipeline: String,
    /// At each delta, in the order given.
    pub at: Vec<AtDelta>,
}

/// Error bars at one delta.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AtDelta {
    /// The share of the samples whose error may exceed its bar.
    pub delta: f64,
    /// Error bars of all samples. Their evidence is the worst of any head, at [`LEVEL`] over the
    /// number of heads.
    pub bars: BarsSummary,
    /// The share that was outside, of the head with the largest.
    pub worst: f64,
    /// Probability of a count at least as large as the least probable one of any head, if its errors
    /// exceed their bars with probability delta.
    pub p_value: f64,
    /// Share of the visible tokens that a query head read.
    pub density: f64,
}

/// Draws `trials` samples of each head by each pipeline at each delta.
///
/// Cost: as [`verify`](crate::verify)'s, for each.
///
/// # Errors
/// A pipeline without an estimator or that cannot run on the trace, no pipeline or no delta, or a
/// damaged trace.
pub fn calibration(
    study: &Study<'_>,
    entries: &[Entry],
    options: &CalibrationOptions,
) -> Result<Calibration> {
    let CalibrationOptions { deltas, trials } = options;
    let layers = chosen_layers(study.trace, study.settings)?;
    let with = |(entry, delta): (&Entry, &Fraction)| {
        let reason = || format!("{} has no [estimator], so no error bars", entry.file);
        let made = at_delta(&entry.pipeline, *delta)
            .ok_or_else(|| Error::Setting { field: "config", reason: reason() })?;
        let name = format!("{}, delta {}", made.name, delta.get());
        Ok(Arc::new(PipelineConfig { name, ..(*made).clone() }))
    };
    let all = entries.iter().flat_map(|entry| deltas.iter().map(move |delta| (entry, delta)));
    let made = all.map(with).collect::<Result<Vec<_>>>()?;
    let (trials, results) = (*trials as usize, study.results);
    let found = try_all(&made, study.trace, &layers, trials, results, study.progress)?;
    let at = made.iter().zip(found).map(|(pipeline, layers)| {
        let heads: Vec<HeadCount> = layers.into_iter().flat_map(|layer| layer.heads).collect();
        AtDelta::new(pipeline, &heads)
    });
    let at: Vec<AtDelta> = at.collect();
    let calibrated = |(i, entry): (usize, &Entry)| Calibrated {
        pipeline: entry.pipeline.name.clone(),
        at: at[i * deltas.len()..][..deltas.len()].to_vec(),
    };
    Ok(Calibration {
        trace: study.trace_name(),
        trials: options.trials,
        pipelines: entries.iter().enumerate().map(calibrated).collect(),
    })
}

impl AtDelta {
    fn new(pipeline: &PipelineConfig, heads: &[HeadCount]) -> Self {
        let outside = heads.iter().filter_map(|head| head.bars.summary(None).share_outside());
        let goal = pipeline.parts().find_map(PipelineConfig::goal);
        let delta = goal.map_or(f64::NAN, |goal| goal.delta.get());
        let level = LEVEL / heads.len() as f64;
        let p_values =
            heads.iter().map(|head| binomial::p_value(head.bars.outside, head.trials, delta));
        let evidence =
            heads.iter().map(|head| Evidence::new(head.bars.outside, head.trials, delta, level));
        Self {
            delta,
            p_value: p_values.fold(1.0, f64::min),
            bars: heads.iter().map(|head| head.bars).sum::<Bars>().summary(evidence.max()),
            worst: outside.fold(0.0, f64::max),
            density: mean(heads.iter().map(|head| head.density)),
        }
    }
}
