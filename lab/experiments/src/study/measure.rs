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

/// What a study samples.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // A function has none.
pub struct Study<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// Its layers and queries.
    pub settings: &'a TraceSettings,
    /// What its units came to: a unit is what the query heads of a KV head are at one query, or what
    /// [`compare`](crate::compare) and [`verify`](crate::verify) say.
    pub results: &'a Results,
    /// Called with the number of rows done and of all that are to be done, from any thread.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Study<'_> {
    /// What `measure` makes of each row after the natural configuration's selectors, in (layer, KV
    /// head, query, member) order. Rows are measured in parallel.
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

    /// The same, after the selectors of a changed configuration.
    pub(super) fn measure_after<T: Serialize + DeserializeOwned + Send>(
        &self,
        certain: &Natural,
        trials: u32,
        measure: impl Fn(&ResidualPopulation) -> T + Sync,
    ) -> Result<Vec<T>> {
        if trials == 0 {
            let reason = "0 samples say nothing; expected at least 1".into();
            return Err(Error::Setting { field: "trials", reason });
        }
        let layers = chosen_layers(self.trace, self.settings)?;
        // Of each unit: the place of its layer, the KV head, the query.
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
        let made: Vec<Vec<T>> = self.results.run_together(&keys, |numbers, keep| {
            let group = |number: &usize| layers[units[*number].0].1.shape.group();
            let (done, total) = (AtomicUsize::new(0), numbers.iter().map(group).sum());
            let same = |a: &usize, b: &usize| units[*a].0 == units[*b].0;
            numbers.chunk_by(same).try_for_each(|of_layer| {
                let number = layers[units[of_layer[0]].0].0;
                let layer = self.trace.layer(number).expect("the layer was listed")?;
                let heads: BTreeSet<usize> = of_layer.iter().map(|&unit| units[unit].1).collect();
                let head =
                    |head| Ok((head, StudyHead::new(certain, self.trace, number, &layer, head)?));
                let heads = heads.into_iter().map(head).collect::<Result<BTreeMap<_, _>>>()?;
                of_layer.par_iter().try_for_each(|&unit| {
                    let (_, head, query) = units[unit];
                    let made: Vec<T> = heads[&head].rows(query)?.iter().map(&measure).collect();
                    let done = done.fetch_add(made.len(), Ordering::Relaxed) + made.len();
                    (self.progress)(done, total);
                    keep.put(unit, made)
                })
            })
        })?;
        Ok(made.into_iter().flatten().collect())
    }

    /// The trace's file, as given.
    pub(super) fn trace_name(&self) -> String {
        self.trace.path().display().to_string()
    }
}
