//! Measurements of every row of a trace, by units of work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use vattention_trace::{Layout, Trace};

use super::head::StudyHead;
use super::natural::Natural;
use super::population::ResidualPopulation;
use crate::compare::chosen_layers;
use crate::{Error, Result, Results, TraceSettings};

/// Rows that a study measures, and the stored results.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // A function has no `Debug`.
pub struct Study<'a> {
    /// Trace.
    pub trace: &'a Trace,
    /// Choice of layers and queries.
    pub settings: &'a TraceSettings,
    /// Results of units. A unit is the query heads of a KV head at one query, or a unit of
    /// [`compare`](crate::compare) or [`verify`](crate::verify).
    pub results: &'a Results,
    /// Callback for the number of finished rows and the number of all rows, from any thread.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Study<'_> {
    /// Calls `measure` for each row, in which the natural configuration's selectors have chosen the
    /// always-read tokens. Returns the results in (layer, KV head, query, member) order. Rows are
    /// measured in parallel.
    ///
    /// # Errors
    /// If there are no trials, or the trace does not fit.
    pub(super) fn measure<T: Serialize + DeserializeOwned + Send>(
        &self,
        trials: u32,
        measure: impl Fn(&ResidualPopulation) -> T + Sync,
    ) -> Result<Vec<T>> {
        self.measure_after(&Natural::default(), trials, measure)
    }

    /// Variant of [`measure`](Self::measure) with the selectors of another configuration.
    pub(super) fn measure_after<T: Serialize + DeserializeOwned + Send>(
        &self,
        natural: &Natural,
        trials: u32,
        measure: impl Fn(&ResidualPopulation) -> T + Sync,
    ) -> Result<Vec<T>> {
        if trials == 0 {
            let reason = "expected at least 1 sample, found 0".into();
            return Err(Error::Setting { field: "trials", reason });
        }
        let layers = chosen_layers(self.trace, self.settings)?;
        // A unit is (index of the layer, KV head, query).
        let places = |(layer, (_, layout)): (usize, &(usize, Layout))| {
            let queries = layout.queries - self.settings.count(layout)..layout.queries;
            let heads = 0..layout.shape.kv_heads;
            heads.flat_map(move |head| queries.clone().map(move |query| (layer, head, query)))
        };
        let units: Vec<(usize, usize, usize)> =
            layers.iter().enumerate().flat_map(places).collect();
        let key = |&(layer, head, query): &(usize, usize, usize)| {
            format!("layer {}, KV head {head}, query {query}", layers[layer].0)
        };
        let keys: Vec<String> = units.iter().map(key).collect();
        let rows: Vec<Vec<T>> = self.results.run_together(&keys, |numbers, sink| {
            let group = |number: &usize| layers[units[*number].0].1.shape.group();
            let (done, total) = (AtomicUsize::new(0), numbers.iter().map(group).sum());
            let same = |a: &usize, b: &usize| units[*a].0 == units[*b].0;
            numbers.chunk_by(same).try_for_each(|of_layer| {
                let number = layers[units[of_layer[0]].0].0;
                let layer = self.trace.layer(number).expect("the layer was listed")?;
                let heads: BTreeSet<usize> = of_layer.iter().map(|&unit| units[unit].1).collect();
                let head =
                    |head| Ok((head, StudyHead::new(natural, self.trace, number, &layer, head)?));
                let heads = heads.into_iter().map(head).collect::<Result<BTreeMap<_, _>>>()?;
                of_layer.par_iter().try_for_each(|&unit| {
                    let (_, head, query) = units[unit];
                    let rows: Vec<T> = heads[&head].rows(query)?.iter().map(&measure).collect();
                    let done = done.fetch_add(rows.len(), Ordering::Relaxed) + rows.len();
                    (self.progress)(done, total);
                    sink.put(unit, rows)
                })
            })
        })?;
        Ok(rows.into_iter().flatten().collect())
    }

    /// File of the trace, as given.
    pub(super) fn trace_name(&self) -> String {
        self.trace.path().display().to_string()
    }
}
