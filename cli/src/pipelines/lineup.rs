//! Pipelines that can run, and those that are left out because they cannot.

use std::fmt::Display;

use serde::Serialize;
use vattention::config::file_advice;
use vattention::experiments::Entry;
use vattention::{Backend, Options, PipelineConfig, Shape};

use crate::fail::{Failure, note};

/// The pipelines that can run, and those that cannot.
pub(crate) struct Lineup<T> {
    pub(crate) run: Vec<T>,
    pub(super) left_out: Vec<LeftOutPipeline>,
}

/// A pipeline that cannot run.
#[derive(Debug, Serialize)]
pub(super) struct LeftOutPipeline {
    #[serde(rename = "pipeline")]
    pub(super) name: String,
    pub(super) file: String,
    pub(super) reason: String,
}

impl Lineup<Entry> {
    /// The pipelines that run.
    pub(crate) fn pipelines(&self) -> impl Iterator<Item = &PipelineConfig> {
        self.run.iter().map(|entry| &*entry.pipeline)
    }

    /// Leaves out what cannot run on some of the layers.
    pub(crate) fn fitting(
        self,
        layers: &[(usize, Shape)],
        backend: &dyn Backend,
    ) -> Result<Self, Failure> {
        self.each(|entry| fits(&entry, layers, backend).map(|()| vec![entry]))
    }

    /// What `make` makes of each pipeline. Those of which it makes nothing are left out, and it is said
    /// why; it is an error if they all are.
    pub(crate) fn each<T, E: Display>(
        self,
        mut make: impl FnMut(Entry) -> Result<Vec<T>, E>,
    ) -> Result<Lineup<T>, Failure> {
        let mut lineup = Lineup { run: Vec::new(), left_out: self.left_out };
        let before = lineup.left_out.len();
        for entry in self.run {
            let (name, file) = (entry.pipeline.name.clone(), entry.file.clone());
            match make(entry) {
                Ok(made) => lineup.run.extend(made),
                Err(error) => {
                    lineup.left_out.push(LeftOutPipeline { name, file, reason: error.to_string() });
                }
            }
        }
        let new = reasons(&lineup.left_out[before..]);
        if lineup.run.is_empty() && !new.is_empty() {
            return Err(Failure::all(&new));
        }
        note_left_out(&new);
        Ok(lineup)
    }
}

impl<T> Lineup<T> {
    /// What was found, with what was left out, for JSON.
    pub(crate) fn told<'a, R: Serialize>(&'a self, found: &'a R) -> impl Serialize + 'a {
        WithLeftOut { found, left_out: &self.left_out }
    }
}

/// Results, and what they lack.
#[derive(Serialize)]
struct WithLeftOut<'a, R> {
    #[serde(flatten)]
    found: &'a R,
    left_out: &'a [LeftOutPipeline],
}

/// Each reason once, after all files that it concerns.
pub(super) fn reasons(left_out: &[LeftOutPipeline]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for LeftOutPipeline { file, reason, .. } in left_out {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, files)) if files.contains(&file.as_str()) => {}
            Some((_, files)) => files.push(file),
            None => reasons.push((reason, vec![file])),
        }
    }
    reasons.iter().map(|(reason, files)| format!("{}: {reason}", files.join(", "))).collect()
}

pub(super) fn note_left_out(reasons: &[String]) {
    for reason in reasons {
        note(&format!("left out: {reason}"));
    }
}

/// Builds a pipeline for layers, or says why it cannot run there.
pub(crate) fn fits(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    layers.iter().try_for_each(|&(layer, shape)| {
        let started = backend.start(&entry.pipeline, layer, shape, &Options::default());
        started.map(drop).map_err(|error| {
            let reason = format!("on layer {layer}: {error}");
            // A file that holds other things than expected may be right, and the pipeline wrong.
            let lacks = error.to_string().contains("there is no ");
            match file_advice(&entry.pipeline, &reason).filter(|_| lacks) {
                Some(advice) => format!("{reason}; {advice}"),
                None => reason,
            }
        })
    })
}

/// Builds a pipeline for all layers of a model, or returns why it cannot run there. A pipeline that
/// names layers that the model does not have cannot run.
#[cfg(feature = "models")]
pub(crate) fn fits_model(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    entry.pipeline.expect_layers(layers.len()).map_err(|error| error.to_string())?;
    fits(entry, layers, backend)
}

/// Refuses a pipeline that cannot run on some of the layers.
pub(crate) fn expect_fit(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), Failure> {
    fits(entry, layers, backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))
}
