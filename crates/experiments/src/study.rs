//! Studies of what a promise rests on: the experiments of "vAttention: Verified Sparse Attention"
//! (2025), <https://arxiv.org/abs/2510.05688>, on a trace of one's own.
//!
//! Those that sample know the whole residual of each row, so that a bound or an estimate is
//! measured by itself. All are deterministic.

mod base_sample;
mod bias;
mod calibration;
mod coverage;
mod epsilon;
mod head;
mod limit;
mod natural;
mod normality;
mod options;
mod pareto;
mod population;
mod sensitivity;
mod sizes;
mod tightness;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::compare::chosen_layers;
use crate::metrics::MeanMax;
use crate::{Error, Result, TraceSettings};
use head::Head;
use natural::Natural;
use population::Population;
use vattention_trace::{Layout, Trace};

pub use base_sample::{BaseSample, BaseSize, base_sample};
pub use bias::{Bias, BiasSize, bias};
pub use calibration::{AtDelta, Calibrated, Calibration, calibration};
pub use coverage::{Coverage, CoverageMethod, RowCoverage, coverage};
pub use epsilon::{EpsilonPoint, EpsilonSeries, EpsilonStudy, epsilon};
pub use limit::{HeadLimit, LimitStudy, limit};
pub use normality::{Normality, NormalitySize, normality};
pub use options::{
    BaseSampleOptions, BiasOptions, CalibrationOptions, CoverageOptions, EpsilonOptions,
    NormalityOptions, PromiseOptions, TightnessOptions,
};
pub use pareto::{Pareto, pareto};
pub use sensitivity::{Sensitivity, Variation, sensitivity};
pub use tightness::{BoundCount, HeadBound, Tightness, tightness};

/// What a study samples.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // A function has none.
pub struct Study<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its layers and queries.
    pub settings: &'a TraceSettings,
    /// Called with the number of rows done and of all, from any thread.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Study<'_> {
    /// What `measure` makes of each row after the natural configuration's selectors, in (layer, KV
    /// head, query, member) order. Rows are measured in parallel.
    ///
    /// # Errors
    /// If there are no trials, or the trace does not fit.
    fn measure<T: Send>(
        &self,
        trials: u32,
        measure: impl Fn(&Population) -> T + Sync,
    ) -> Result<Vec<T>> {
        self.measure_after(&Natural::default(), trials, measure)
    }

    /// The same, after the selectors of a changed configuration.
    fn measure_after<T: Send>(
        &self,
        certain: &Natural,
        trials: u32,
        measure: impl Fn(&Population) -> T + Sync,
    ) -> Result<Vec<T>> {
        if trials == 0 {
            let reason = "0 samples say nothing; expected at least 1".into();
            return Err(Error::Setting { option: "--trials", reason });
        }
        let layers = chosen_layers(self.trace, self.settings)?;
        let rows = |layout: &Layout| self.settings.count(layout) * layout.shape.query_heads;
        let total = layers.iter().map(|(_, layout)| rows(layout)).sum();
        let done = AtomicUsize::new(0);
        let mut measured = Vec::with_capacity(total);
        for (number, layout) in layers {
            let layer = self.trace.layer(number).expect("the layer was listed")?;
            let first = layout.queries - self.settings.count(&layout);
            let places: Vec<(usize, usize)> = (0..layout.shape.kv_heads)
                .flat_map(|kv_head| (first..layout.queries).map(move |query| (kv_head, query)))
                .collect();
            let heads = (0..layout.shape.kv_heads)
                .map(|kv_head| Head::new(certain, self.trace, number, &layer, kv_head))
                .collect::<Result<Vec<_>>>()?;
            let one = |(kv_head, query): (usize, usize)| -> Result<Vec<T>> {
                let rows = heads[kv_head].rows(query)?;
                let made: Vec<T> = rows.iter().map(&measure).collect();
                let done = done.fetch_add(made.len(), Ordering::Relaxed) + made.len();
                (self.progress)(done, total);
                Ok(made)
            };
            let made: Result<Vec<Vec<T>>> = places.into_par_iter().map(one).collect();
            measured.extend(made?.into_iter().flatten());
        }
        Ok(measured)
    }

    /// The trace's file, as given.
    fn trace_name(&self) -> String {
        self.trace.path().display().to_string()
    }
}

/// Heads (layer, query head), ascending, each once.
fn distinct(heads: impl Iterator<Item = (usize, usize)>) -> Vec<(usize, usize)> {
    heads.collect::<BTreeSet<_>>().into_iter().collect()
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    MeanMax::new(numbers).mean
}
