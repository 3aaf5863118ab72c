//! A pipeline as written in a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layers::Written;
use crate::{BudgetEstimator, LayerSettings, Layers, Promise, Sampling, SelectorConfig, Size};

/// Selectors, and what to do with the tokens they leave: a strategy of sparse attention.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct PipelineConfig {
    /// What tables and plots call it.
    pub name: String,
    /// Keys every random choice.
    pub seed: u64,
    /// Whether the query heads of a KV head read one list.
    pub share: Share,
    /// Layers that read everything, whatever else is said of them.
    pub dense_layers: Vec<Layers>,
    /// In order; each sees what those before it took.
    pub selectors: Vec<Box<dyn SelectorConfig>>,
    /// Details of the draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<SamplerConfig>,
    /// How large a sample of the residual must be; absent: the residual is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<Box<dyn BudgetEstimator>>,
    /// Layers with settings of their own; no layer is in two of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerSettings>,
}

/// Who reads which list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// The query heads of a KV head read one list: the union of their picks and one sample.
    #[default]
    Group,
    /// Every query head has its own list.
    Head,
}

/// The `[sampler]` table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SamplerConfig {
    /// Tokens in the first look at the residual; one has no variance, so it reads everything.
    #[serde(default = "default_base")]
    pub base: Size,
}

fn default_base() -> Size {
    Size::Tokens(128)
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self { base: default_base() }
    }
}

/// Parts of a pipeline that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The part at fault: a key of the file, with an index where it is a list (`selectors[1]`).
    pub at: String,
    /// What is wrong.
    pub message: String,
    /// How to mend it.
    pub help: String,
}

/// Each needs a purpose of its own among 2¹⁶ of random numbers.
const MOST_SELECTORS: usize = 1000;

impl PipelineConfig {
    /// Whether it is plain dense attention at every layer.
    pub fn is_dense(&self) -> bool {
        self.parts().all(Self::reads_everything)
    }

    /// Whether layers without settings of their own read everything.
    pub fn reads_everything(&self) -> bool {
        self.selectors.is_empty() && self.estimator.is_none()
    }

    /// What its estimator promises, or the selector that draws in its place, if either does: the
    /// same at every layer that is not dense.
    pub fn promise(&self) -> Option<Promise> {
        self.parts().find_map(Self::own_promise)
    }

    /// What is promised at layers without settings of their own.
    pub(crate) fn own_promise(&self) -> Option<Promise> {
        match &self.estimator {
            Some(estimator) => estimator.promise(),
            None => self.selectors.iter().find_map(|selector| selector.promise()),
        }
    }

    /// The sample that follows the selectors, if it is for a promise, at layers without settings of
    /// their own.
    pub fn sampling(&self) -> Option<Sampling> {
        let promise = self.estimator.as_ref()?.promise()?;
        Some(Sampling { promise, base: self.sampler.unwrap_or_default().base })
    }

    /// Everything that no component can check for itself. Empty if the pipeline can run.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let mut found = self.own_conflicts();
        found.extend(self.conflicts_of_layers());
        found
    }

    /// The conflicts at layers without settings of their own.
    pub(crate) fn own_conflicts(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut conflict = |at: String, message: String, help: &str| {
            found.push(Conflict { at, message, help: help.into() });
        };
        for (i, selector) in self.selectors.iter().enumerate().filter(|(_, s)| s.randomized()) {
            let name = selector.typetag_name();
            if i + 1 < self.selectors.len() {
                conflict(
                    format!("selectors[{i}]"),
                    format!("`{name}` weighs tokens by its own probabilities, so it must be last"),
                    "move it to the end",
                );
            }
            if self.estimator.is_some() {
                conflict(
                    format!("selectors[{i}]"),
                    format!(
                        "`{name}` weighs tokens by its own probabilities, so no estimator may \
                         follow it"
                    ),
                    "leave out [estimator], or let the selector pick for certain",
                );
            }
            if self.share == Share::Group {
                conflict(
                    format!("selectors[{i}]"),
                    format!("`{name}` draws for each query head, which cannot share one list"),
                    "write `share = \"head\"` at the top of the file",
                );
            }
        }
        let sampled = self.sampling().is_some();
        for (i, selector) in self.selectors.iter().enumerate().filter(|(_, s)| s.needs_sampling()) {
            if !sampled {
                conflict(
                    format!("selectors[{i}]"),
                    format!(
                        "`{}` with `size = \"auto\"` takes what a sample for a promise would cost \
                         more for, and no estimator promises anything",
                        selector.typetag_name()
                    ),
                    "add an [estimator] that promises something, such as `ratio`, or write a size",
                );
            }
        }
        if self.selectors.len() > MOST_SELECTORS {
            conflict(
                format!("selectors[{MOST_SELECTORS}]"),
                format!(
                    "there are {} selectors, at most {MOST_SELECTORS} can be",
                    self.selectors.len()
                ),
                "leave some out",
            );
        }
        if let Some(estimator) = self.estimator.as_ref().filter(|e| e.needs_bound())
            && !self.selectors.iter().any(|selector| selector.bounds_residual())
        {
            conflict(
                "estimator".into(),
                format!(
                    "`{}` as it is set needs a proved bound on the weights that the selectors \
                     leave, and none of them gives one",
                    estimator.typetag_name()
                ),
                "add a selector that does, such as oracle-top-k with `score = \"head\"`",
            );
        }
        if self.sampler.is_some() && self.estimator.is_none() {
            conflict(
                "sampler".into(),
                "[sampler] says how to draw, but without [estimator] nothing is drawn".into(),
                "add [estimator], or leave out [sampler]",
            );
        }
        found
    }
}
