//! `calibration`: coverage of error bars at several confidence levels.
//!
//! A bar at confidence `1 − δ` may miss the truth in a share of at most δ of a head's samples. The
//! study sets each pipeline to each confidence level, and draws samples of every row. Bars may be
//! too wide: each head's count of misses is tested by its exact binomial tail probability.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use vattention_core::{Fraction, PipelineConfig};

use super::measure::Study;
use super::options::CalibrationOptions;
use crate::compare::chosen_layers;
use crate::metrics::mean;
use crate::metrics::{Bars, BarsSummary, Evidence, LEVEL, binomial};
use crate::verify::{HeadCount, run_all_trials, with_delta};
use crate::{Entry, Error, Result};

/// Result of the study.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Calibration {
    /// File of the trace, as given.
    pub trace: String,
    /// Number of samples of each head, spread over its queries.
    pub trials: u32,
    /// Results of each pipeline.
    pub pipelines: Vec<Calibrated>,
}

/// Error bars of one pipeline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Calibrated {
    /// Name of the pipeline.
    pub pipeline: String,
    /// Results at each delta, in the order given.
    pub at: Vec<AtDelta>,
}

/// Error bars at one delta.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct AtDelta {
    /// Probability with which an error may exceed its bar.
    pub delta: f64,
    /// Error bars of all samples. The evidence is the worst of any head, at [`LEVEL`] over the
    /// number of heads.
    pub bars: BarsSummary,
    /// Largest share of errors outside their bars, of any head.
    pub worst: f64,
    /// Smallest p-value of any head: the probability of at least the head's number of errors
    /// outside their bars, if errors exceed their bars with probability delta.
    pub p_value: f64,
    /// Share of the visible tokens that a query head read.
    pub density: f64,
}

/// Draws `trials` samples of each head by each pipeline at each delta.
///
/// Cost: that of [`verify`](crate::verify), for each pipeline and delta.
///
/// # Errors
/// If a pipeline has no estimator or cannot run on the trace, there is no pipeline or no delta, or
/// the trace is damaged.
pub fn calibration(
    study: &Study<'_>,
    entries: &[Entry],
    options: &CalibrationOptions,
) -> Result<Calibration> {
    let CalibrationOptions { deltas, trials } = options;
    let layers = chosen_layers(study.trace, study.settings)?;
    let set_delta = |(entry, delta): (&Entry, &Fraction)| {
        let reason = || format!("{} has no [estimator], so no error bars", entry.file);
        let pipeline = with_delta(&entry.pipeline, *delta)
            .ok_or_else(|| Error::Setting { field: "config", reason: reason() })?;
        let name = format!("{}, delta {}", pipeline.name, delta.get());
        Ok(Arc::new(PipelineConfig { name, ..(*pipeline).clone() }))
    };
    let all = entries.iter().flat_map(|entry| deltas.iter().map(move |delta| (entry, delta)));
    let with_deltas = all.map(set_delta).collect::<Result<Vec<_>>>()?;
    let (trials, stored) = (*trials as usize, study.results);
    let found = run_all_trials(&with_deltas, study.trace, &layers, trials, stored, study.progress)?;
    let results = with_deltas.iter().zip(found).map(|(pipeline, layers)| {
        let heads: Vec<HeadCount> = layers.into_iter().flat_map(|layer| layer.heads).collect();
        AtDelta::new(pipeline, &heads)
    });
    let results: Vec<AtDelta> = results.collect();
    let calibrated = |(i, entry): (usize, &Entry)| Calibrated {
        pipeline: entry.pipeline.name.clone(),
        at: results[i * deltas.len()..][..deltas.len()].to_vec(),
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
