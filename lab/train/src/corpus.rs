//! Traces of one model, which together say what its heads are like.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention_core::Shape;
use vattention_trace::{Trace, TraceLayer};

use crate::{Error, Result};

/// Traces of the same layers and heads, at least one.
#[derive(Debug)]
pub struct Corpus {
    traces: Vec<Trace>,
    layers: BTreeMap<usize, Shape>,
}

impl Corpus {
    /// Opens traces.
    ///
    /// # Errors
    /// A file that is no trace, a trace without layers or without queries, or one whose layers,
    /// heads or scale differ from those of the first.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let traces = paths.iter().map(|path| Trace::open(path)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = traces.first() else {
            return Err(Error::setting("trace", "none; expected at least one"));
        };
        let corpus = Self { layers: shapes(first), traces };
        corpus.traces.iter().try_for_each(|trace| corpus.expect_same(trace))?;
        Ok(corpus)
    }

    /// Refuses traces of another model.
    ///
    /// # Errors
    /// Names the first trace of `other` that differs, and how.
    pub fn expect_same_model(&self, other: &Self) -> Result<()> {
        other.traces.iter().try_for_each(|trace| self.expect_same(trace))
    }

    /// Refuses traces of fewer queries.
    ///
    /// # Errors
    /// Names the first trace that has fewer.
    pub fn expect_queries(&self, least: usize) -> Result<()> {
        for trace in &self.traces {
            if let Some((number, layout)) = trace.layers().find(|(_, l)| l.queries < least) {
                let found = layout.queries;
                let reason =
                    format!("layer {number} has {found} queries; expected {least} or more");
                return Err(Error::trace(trace.path(), reason));
            }
        }
        Ok(())
    }

    /// The layers and their heads.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (usize, Shape)> + '_ {
        self.layers.iter().map(|(&number, &shape)| (number, shape))
    }

    /// What queries are multiplied by; `None` is `1 / √head_dim`.
    pub fn scale(&self) -> Option<f32> {
        self.traces[0].info().scale
    }

    /// The files, as they were given.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.traces.iter().map(Trace::path)
    }

    /// The numbers of one layer, one after the other, for each trace.
    ///
    /// # Errors
    /// A number that is not finite, or a layer that is not there.
    pub fn layer(&self, number: usize) -> impl Iterator<Item = Result<TraceLayer>> + '_ {
        self.traces.iter().map(move |trace| {
            let missing = || Error::trace(trace.path(), format!("there is no layer {number}"));
            Ok(trace.layer(number).ok_or_else(missing)??)
        })
    }

    fn expect_same(&self, trace: &Trace) -> Result<()> {
        let (wanted, found) = (&self.layers, shapes(trace));
        let first = self.traces[0].path().display();
        let refuse = |reason: String| Err(Error::trace(trace.path(), reason));
        if found.is_empty() {
            return refuse("there are no layers to learn from".into());
        }
        if !wanted.keys().eq(found.keys()) {
            let (found, wanted) = (found.keys(), wanted.keys());
            return refuse(format!("has layers {found:?}; expected {wanted:?} as {first} has"));
        }
        for ((number, wanted), found) in wanted.iter().zip(found.values()) {
            if wanted != found {
                let reason =
                    format!("layer {number} has {found:?}; expected {wanted:?} of {first}");
                return refuse(reason);
            }
        }
        if trace.info().scale != self.scale() {
            return refuse(format!("its scale differs from that of {first}"));
        }
        match trace.layers().find(|(_, layout)| layout.queries == 0 || layout.tokens == 0) {
            Some((number, _)) => refuse(format!("layer {number} holds no queries or no tokens")),
            None => Ok(()),
        }
    }
}

fn shapes(trace: &Trace) -> BTreeMap<usize, Shape> {
    trace.layers().map(|(number, layout)| (number, layout.shape)).collect()
}
