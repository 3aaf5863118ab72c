//! Pipelines that run, and pipelines that are left out because they cannot run.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::Serialize;
use vattention::config::file_advice;
use vattention::experiments::Entry;
use vattention::{Backend, Options, PipelineConfig, Shape};

use crate::fail::{Failure, note};

/// The pipelines that run, and the pipelines that are left out.
pub(crate) struct Lineup<T> {
    pub(crate) run: Vec<T>,
    pub(super) left_out: Vec<LeftOutPipeline>,
}

/// Pipeline that cannot run, and the reason.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LeftOutPipeline {
    /// Name of the pipeline.
    #[serde(rename = "pipeline")]
    pub(super) name: String,
    /// Pipeline file, as given.
    pub(super) file: String,
    /// Error message.
    pub(super) reason: String,
}

impl Lineup<Entry> {
    /// Returns the pipelines that run.
    pub(crate) fn pipelines(&self) -> impl Iterator<Item = &PipelineConfig> {
        self.run.iter().map(|entry| &*entry.pipeline)
    }

    /// Leaves out pipelines that cannot run on one of the layers.
    pub(crate) fn fitting(
        self,
        layers: &[(usize, Shape)],
        backend: &dyn Backend,
    ) -> Result<Self, Failure> {
        self.expand(|entry| fits(&entry, layers, backend).map(|()| vec![entry]))
    }

    /// Replaces each pipeline by its variants from `expand`. A pipeline for which `expand` fails is
    /// left out, and the reason is printed as a note.
    ///
    /// # Errors
    /// If all pipelines are left out.
    pub(crate) fn expand<T, E: Display>(
        self,
        mut expand: impl FnMut(Entry) -> Result<Vec<T>, E>,
    ) -> Result<Lineup<T>, Failure> {
        let mut lineup = Lineup { run: Vec::new(), left_out: self.left_out };
        let before = lineup.left_out.len();
        for entry in self.run {
            let (name, file) = (entry.pipeline.name.clone(), entry.file.clone());
            match expand(entry) {
                Ok(variants) => lineup.run.extend(variants),
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
    /// Returns results together with the pipelines that were left out, for JSON.
    pub(crate) fn with_left_out<'a, R: Serialize>(&'a self, results: &'a R) -> impl Serialize + 'a {
        WithLeftOut { results, left_out: &self.left_out }
    }
}

/// Results, and the pipelines that were left out.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WithLeftOut<'a, R> {
    #[serde(flatten)]
    results: &'a R,
    /// Pipelines that could not run, with the reasons.
    left_out: &'a [LeftOutPipeline],
}

/// Returns messages with each reason once, after the names of its files.
pub(super) fn reasons(left_out: &[LeftOutPipeline]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for LeftOutPipeline { file, reason, .. } in left_out {
        match reasons.iter_mut().find(|(listed, _)| listed == reason) {
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

/// Builds a pipeline for layers, or returns the reason for which it cannot run on one of them.
pub(crate) fn fits(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    layers.iter().try_for_each(|&(layer, shape)| {
        let started = backend.start(&entry.pipeline, layer, shape, &Options::default());
        started.map(drop).map_err(|error| {
            let reason = format!("on layer {layer}: {error}");
            // Advice to make another file helps only if the file lacks something: with an
            // unexpected content, the file may be right and the pipeline wrong.
            let lacks = error.to_string().contains("there is no ");
            match file_advice(&entry.pipeline, &reason).filter(|_| lacks) {
                Some(advice) => format!("{reason}; {advice}"),
                None => reason,
            }
        })
    })
}

/// Builds a pipeline for all layers of a model, or returns the reason for which it cannot run. A
/// pipeline that names a layer beyond the model's last one cannot run.
#[cfg(feature = "models")]
pub(crate) fn fits_model(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), String> {
    entry.pipeline.expect_layers(layers.len()).map_err(|error| error.to_string())?;
    fits(entry, layers, backend)
}

/// Refuses a pipeline that cannot run on one of the layers.
pub(crate) fn expect_fit(
    entry: &Entry,
    layers: &[(usize, Shape)],
    backend: &dyn Backend,
) -> Result<(), Failure> {
    fits(entry, layers, backend)
        .map_err(|reason| Failure::input(format!("{}: {reason}", entry.file)))
}
