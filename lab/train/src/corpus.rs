//! Traces of one model, to train or calibrate on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use vattention_core::Shape;
use vattention_trace::{Trace, TraceLayer};

use crate::{Error, Result};

/// At least one trace; all have the same layers and heads.
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
    /// If a trace of `other` differs in layers, heads or scale; the error names the first one.
    pub fn expect_same_model(&self, other: &Self) -> Result<()> {
        other.traces.iter().try_for_each(|trace| self.expect_same(trace))
    }

    /// Refuses traces with fewer queries than `least` in a layer.
    ///
    /// # Errors
    /// If a trace has fewer; the error names the first one.
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

    /// Returns the layers, and their shapes.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (usize, Shape)> + '_ {
        self.layers.iter().map(|(&number, &shape)| (number, shape))
    }

    /// Returns the factor of queries; `None` stands for `1 / √head_dim`.
    pub fn scale(&self) -> Option<f32> {
        self.traces[0].info().scale
    }

    /// Returns the paths of the traces, as given to [`Corpus::open`].
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.traces.iter().map(Trace::path)
    }

    /// Reads one layer of each trace.
    ///
    /// # Errors
    /// A number that is not finite, or a layer that does not exist.
    pub fn layer(&self, number: usize) -> impl Iterator<Item = Result<TraceLayer>> + '_ {
        self.traces.iter().map(move |trace| {
            let missing = || Error::trace(trace.path(), format!("there is no layer {number}"));
            Ok(trace.layer(number).ok_or_else(missing)??)
        })
    }

    fn expect_same(&self, trace: &Trace) -> Result<()> {
        let (expected, found) = (&self.layers, shapes(trace));
        let first = self.traces[0].path().display();
        let refuse = |reason: String| Err(Error::trace(trace.path(), reason));
        if found.is_empty() {
            return refuse("there are no layers; expected at least one".into());
        }
        if !expected.keys().eq(found.keys()) {
            let (found, expected) = (found.keys(), expected.keys());
            return refuse(format!("has layers {found:?}; expected {expected:?} as {first} has"));
        }
        for ((number, expected), found) in expected.iter().zip(found.values()) {
            if expected != found {
                let reason =
                    format!("layer {number} has {found:?}; expected {expected:?} of {first}");
                return refuse(reason);
            }
        }
        if trace.info().scale != self.scale() {
            return refuse(format!("its scale differs from that of {first}"));
        }
        match trace.layers().find(|(_, layout)| layout.queries == 0 || layout.tokens == 0) {
            Some((number, _)) => refuse(format!("layer {number} has no queries or no tokens")),
            None => Ok(()),
        }
    }
}

fn shapes(trace: &Trace) -> BTreeMap<usize, Shape> {
    trace.layers().map(|(number, layout)| (number, layout.shape)).collect()
}
