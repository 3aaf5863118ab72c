//! A pipeline as written in a file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    pipeline::Layers,
    plugin::{Estimator, SamplerConfig, SelectorConfig, Uniform},
    promise::{Goal, Promise},
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

    /// The pipeline of a layer: its own, or else this.
    pub fn layer_config(self: &Arc<Self>, layer: usize) -> &Arc<Self> {
        let own = self.layers.iter().find(|settings| settings.contains(layer));
        own.map_or(self, |settings| &settings.pipeline)
    }

    /// The first selector that needs the classes of tokens at a layer, by name, if one does.
    pub fn needs_classes_at(self: &Arc<Self>, layer: usize) -> Option<&str> {
        let part = self.layer_config(layer);
        if part.is_dense_at(layer) { None } else { part.own_needs_classes() }
    }

    /// This pipeline, and those of layers with settings of their own.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.layers.iter().map(|settings| &*settings.pipeline))
    }
}

/// Layers with settings of their own: a `[[layers]]` table.
#[derive(Clone, Debug)]
pub struct LayerSettings {
    /// Which layers.
    pub at: Vec<Layers>,
    /// The whole pipeline there. Its name, seed, share and dense layers are those of the pipeline
    /// that it is a part of.
    pub pipeline: Arc<PipelineConfig>,
}

impl LayerSettings {
    /// Whether a layer is one of these.
    pub fn contains(&self, layer: usize) -> bool {
        self.at.iter().any(|layers| layers.contains(layer))
    }
}

/// A pipeline as it is written: its layers whole, but for what they share with all.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Written {
    name: String,
    seed: u64,
    share: Share,
    dense_layers: Vec<Layers>,
    selectors: Vec<Box<dyn SelectorConfig>>,
    sampler: Option<Box<dyn SamplerConfig>>,
    estimator: Option<Box<dyn Estimator>>,
    layers: Vec<WrittenLayers>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLayers {
    at: Vec<Layers>,
    /// For pipeline files, in which a table may leave things to the rest.
    #[serde(default, rename = "alone")]
    _alone: bool,
    #[serde(default)]
    selectors: Vec<Box<dyn SelectorConfig>>,
    sampler: Option<Box<dyn SamplerConfig>>,
    estimator: Option<Box<dyn Estimator>>,
}

impl From<Written> for PipelineConfig {
    fn from(written: Written) -> Self {
        let Written { name, seed, share, dense_layers, selectors, sampler, estimator, layers } =
            written;
        let settings = |WrittenLayers { at, selectors, sampler, estimator, .. }| LayerSettings {
            at,
            pipeline: Arc::new(Self {
                name: name.clone(),
                seed,
                share,
                dense_layers: dense_layers.clone(),
                selectors,
                sampler,
                estimator,
                layers: Vec::new(),
            }),
        };
        let layers = layers.into_iter().map(settings).collect();
        Self { name, seed, share, dense_layers, selectors, sampler, estimator, layers }
    }
}

impl Serialize for LayerSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Own<'a> {
            at: &'a [Layers],
            alone: bool,
            selectors: &'a [Box<dyn SelectorConfig>],
            #[serde(skip_serializing_if = "Option::is_none")]
            sampler: &'a Option<Box<dyn SamplerConfig>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            estimator: &'a Option<Box<dyn Estimator>>,
        }
        let PipelineConfig { selectors, sampler, estimator, .. } = &*self.pipeline;
        let own = Own { at: &self.at, alone: true, selectors, sampler, estimator };
        own.serialize(serializer)
    }
}
