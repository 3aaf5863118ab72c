//! A pipeline as written in a file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layers::Written;
use crate::{
    Estimator, Evidence, Goal, LayerSettings, Layers, Promise, SamplerConfig, SelectorConfig,
    Target, Uniform,
};

/// Selectors, and what to do with the tokens they leave: a strategy of sparse attention.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// How tokens of the residual are drawn; absent: [`Uniform`] with its default, if there is an
    /// estimator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<Box<dyn SamplerConfig>>,
    /// How large a sample of the residual must be; absent: the residual is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<Box<dyn Estimator>>,
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

impl Share {
    /// Number of query heads that read one list, of a `group` that shares a KV head.
    pub fn heads_per_list(self, group: usize) -> usize {
        match self {
            Self::Group => group,
            Self::Head => 1,
        }
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
        self.selectors.is_empty() && !self.draws()
    }

    /// What its estimator promises, if it promises anything: the same at every layer that is not dense.
    pub fn promise(&self) -> Option<Promise> {
        self.parts().find_map(Self::own_promise)
    }

    /// The goal of samples, at layers without settings of their own.
    pub fn goal(&self) -> Option<Goal> {
        self.estimator.as_ref()?.goal().ok()
    }

    /// What is promised at layers without settings of their own.
    pub(crate) fn own_promise(&self) -> Option<Promise> {
        self.goal()?.promise()
    }

    /// Whether tokens are drawn by chance, at layers without settings of their own.
    pub fn draws(&self) -> bool {
        self.estimator.is_some() || self.sampler.is_some()
    }

    /// How they are.
    pub fn sampler(&self) -> &dyn SamplerConfig {
        self.sampler.as_deref().unwrap_or(&Uniform::DEFAULT)
    }

    /// The first selector that needs the classes of tokens, at any layer, by name, if one does.
    pub fn needs_classes(&self) -> Option<&str> {
        self.parts().find_map(Self::own_needs_classes)
    }

    /// Whether everything is read at a layer without settings of its own.
    pub(crate) fn is_dense_at(&self, layer: usize) -> bool {
        self.reads_everything() || self.dense_layers.iter().any(|layers| layers.contains(layer))
    }

    /// The first selector that needs the classes of tokens, at layers without settings of their own.
    pub(crate) fn own_needs_classes(&self) -> Option<&str> {
        let selector = self.selectors.iter().find(|selector| selector.needs_classes())?;
        Some(selector.typetag_name())
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
        if let Some((at, message, help)) = self.unsound() {
            conflict(at.into(), message, help);
        }
        if self.share == Share::Group && !self.sampler().shares() {
            let name = self.sampler().typetag_name();
            conflict(
                "sampler".into(),
                format!("`{name}` draws for each query head, which cannot share one list"),
                "write `share = \"head\"` at the top of the file",
            );
        }
        found
    }

    /// Why estimator and sampler do not suit each other: the key at fault, what is wrong and how to
    /// mend it.
    fn unsound(&self) -> Option<(&'static str, String, &'static str)> {
        let sampler = self.sampler();
        let draws = sampler.typetag_name();
        let Some(estimator) = &self.estimator else {
            let idle = self.sampler.is_some() && sampler.evidence() != Evidence::Nothing;
            return idle.then(|| {
                let message =
                    "[sampler] says how to draw, but without [estimator] nothing is drawn";
                ("sampler", message.into(), "add [estimator], or leave out [sampler]")
            });
        };
        let asks = estimator.typetag_name();
        let target = match estimator.goal() {
            Ok(goal) => goal.target,
            Err(conflict) => {
                let help = "write `epsilon` for a promise (and `limit` for the most that it may read), or \
                        `size` for a budget";
                return Some(("estimator", format!("`{asks}` {conflict}"), help));
            }
        };
        let bounded = self.selectors.iter().any(|selector| selector.bounds_residual());
        match (estimator.evidence(), sampler.evidence()) {
            (_, Evidence::Nothing) => Some((
                "estimator",
                format!(
                    "the draws of `{draws}` depend on each other, so its samples neither grow nor \
                     tell their error, and no estimator can follow"
                ),
                "leave out [estimator], or draw by another sampler",
            )),
            (needs @ (Evidence::Range | Evidence::Proof), _) if sampler.is_uniform() => (!bounded)
                .then(|| {
                    let message = format!(
                        "`{asks}` as it is set needs a proved bound on the weights that the \
                         selectors leave, and none of them gives one"
                    );
                    ("estimator", message, how_to_bound(needs, target))
                }),
            (Evidence::Range, _) => Some((
                "sampler",
                format!(
                    "`{asks}` bounds what a uniform sample misses, and `{draws}` draws otherwise"
                ),
                "leave out [sampler], or take `ratio` for an estimator",
            )),
            (Evidence::Proof, Evidence::Variances) => Some((
                "sampler",
                format!(
                    "`{asks}` as it is set takes nothing for granted, and nothing bounds the weights \
                     of the tokens that `{draws}` has not drawn"
                ),
                if draws == "priority" {
                    "write `index = \"8-bit\"` under [sampler], whose copies of the keys bound \
                     them, or take `mode = \"default\"`"
                } else {
                    "take `mode = \"default\"`, or the sampler `priority` with `index = \"8-bit\"`"
                },
            )),
            (Evidence::Proof, Evidence::Proof) if target != Target::Sdpa => Some((
                "estimator",
                format!(
                    "`{asks}` as it is set takes nothing for granted, and of samples by `{draws}` only the \
                     error of the output is proved, not that of the {target}"
                ),
                "write `target = \"sdpa\"`, take `mode = \"default\"`, or leave out [sampler]",
            )),
            (Evidence::Nothing | Evidence::Variances | Evidence::Proof, _) => None,
        }
    }
}

/// Advice for an estimator that needs a proved bound, with a uniform sample and selectors that
/// prove none. An exact top-k reads every key, so it is the last suggestion.
fn how_to_bound(needs: Evidence, target: Target) -> &'static str {
    match (needs, target) {
        (Evidence::Proof, Target::Sdpa) => {
            "draw by `[sampler]` `type = \"priority\"` with `index = \"8-bit\"`, which bounds every \
             weight, or add the selector `oracle-top-k` with `score = \"head\"`, which reads every key"
        }
        (Evidence::Proof, _) => {
            "write `target = \"sdpa\"` and draw by `[sampler]` `type = \"priority\"` with \
             `index = \"8-bit\"`, or add the selector `oracle-top-k` with `score = \"head\"`, \
             which reads every key"
        }
        _ => {
            "take the estimator `ratio`, which needs none, or add the selector `oracle-top-k` with \
             `score = \"head\"`, which reads every key"
        }
    }
}
