//! Configuration of a pipeline.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::{
    pipeline::Layers,
    plugin::{Estimator, SamplerConfig, SelectorConfig, Uniform},
    promise::{Goal, Promise},
};

/// Configuration of a pipeline, as written in a file: selectors, whose picks are always read, and a
/// sampler and an estimator for the tokens that they leave, the residual.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "SerializedPipeline")]
pub struct PipelineConfig {
    /// Name in tables and plots.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Sharing of token lists among the query heads of a KV head.
    pub share: Share,
    /// Layers that read every token, even if they have settings of their own.
    pub dense_layers: Vec<Layers>,
    /// Selectors in the order in which they run; each sees the picks of those before it.
    pub selectors: Vec<Box<dyn SelectorConfig>>,
    /// Sampler that draws tokens of the residual. `None` means [`Uniform::DEFAULT`] if there is an
    /// estimator, and no sample otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler: Option<Box<dyn SamplerConfig>>,
    /// Estimator that decides how large the sample must be. With neither estimator nor sampler, the
    /// residual is not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimator: Option<Box<dyn Estimator>>,
    /// Settings of single layers; each layer is in at most one entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerSettings>,
}

/// Sharing of token lists among the query heads of a KV head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// The query heads of a KV head read one token list: the union of their picks and one sample.
    #[default]
    Group,
    /// Every query head has its own token list.
    Head,
}

impl Share {
    /// Number of query heads that read one token list, if `group` query heads share a KV head.
    pub fn heads_per_list(self, group: usize) -> usize {
        match self {
            Self::Group => group,
            Self::Head => 1,
        }
    }
}

impl PipelineConfig {
    /// Returns true if every layer computes dense attention.
    pub fn is_dense(&self) -> bool {
        self.parts().all(Self::reads_everything)
    }

    /// Returns true if layers without settings of their own read every token.
    pub fn reads_everything(&self) -> bool {
        self.selectors.is_empty() && !self.draws()
    }

    /// Promise of the estimator, if it makes one. It is the same at every layer that is not dense.
    pub fn promise(&self) -> Option<Promise> {
        self.parts().find_map(Self::own_promise)
    }

    /// Goal of the samples at layers without settings of their own.
    pub fn goal(&self) -> Option<Goal> {
        self.estimator.as_ref()?.goal().ok()
    }

    /// Promise at layers without settings of their own.
    pub(crate) fn own_promise(&self) -> Option<Promise> {
        self.goal()?.promise()
    }

    /// Returns true if tokens are sampled at layers without settings of their own.
    pub fn draws(&self) -> bool {
        self.estimator.is_some() || self.sampler.is_some()
    }

    /// Sampler at layers without settings of their own: the default if none is configured.
    pub fn sampler(&self) -> &dyn SamplerConfig {
        self.sampler.as_deref().unwrap_or(&Uniform::DEFAULT)
    }

    /// Name of the first selector, at any layer, that needs the classes of tokens.
    pub fn needs_classes(&self) -> Option<&str> {
        self.parts().find_map(Self::own_needs_classes)
    }

    /// Returns true if no selector or sampler, at any layer, depends on single channels of queries
    /// and keys; see [`SelectorConfig::is_rotation_invariant`].
    pub fn is_rotation_invariant(&self) -> bool {
        self.parts().all(|part| {
            part.selectors.iter().all(|selector| selector.is_rotation_invariant())
                && part.sampler().is_rotation_invariant()
        })
    }

    /// Returns true if a layer without settings of its own reads every token.
    pub(crate) fn is_dense_at(&self, layer: usize) -> bool {
        self.reads_everything() || self.dense_layers.iter().any(|layers| layers.contains(layer))
    }

    /// Name of the first selector that needs the classes of tokens at layers without settings of
    /// their own.
    pub(crate) fn own_needs_classes(&self) -> Option<&str> {
        let selector = self.selectors.iter().find(|selector| selector.needs_classes())?;
        Some(selector.typetag_name())
    }

    /// Configuration of a layer: its own settings if it has any, else `self`.
    pub fn layer_config(self: &Arc<Self>, layer: usize) -> &Arc<Self> {
        let own = self.layers.iter().find(|settings| settings.contains(layer));
        own.map_or(self, |settings| &settings.pipeline)
    }

    /// Name of the first selector that needs the classes of tokens at a layer.
    pub fn needs_classes_at(self: &Arc<Self>, layer: usize) -> Option<&str> {
        let part = self.layer_config(layer);
        if part.is_dense_at(layer) { None } else { part.own_needs_classes() }
    }

    /// Returns `self`, then the configurations of layers with settings of their own.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.layers.iter().map(|settings| &*settings.pipeline))
    }

    /// Calls `change` with each of the [parts](Self::parts), which must not change their `layers`.
    pub fn change_parts(&mut self, mut change: impl FnMut(&mut Self)) {
        change(self);
        for settings in &mut self.layers {
            change(Arc::make_mut(&mut settings.pipeline));
        }
    }
}

/// Settings of some layers: a `[[layers]]` table.
///
/// The heads of a layer have no settings of their own, because query heads may share a token list,
/// and all rows have one promise. A selector is built for one KV head, so it can read settings of
/// its head from a file, as `duo-attention` does.
#[derive(Clone, Debug)]
pub struct LayerSettings {
    /// Layers that have these settings.
    pub at: Vec<Layers>,
    /// Complete configuration of these layers. Its name, seed, share and dense layers equal those
    /// of the enclosing configuration.
    pub pipeline: Arc<PipelineConfig>,
}

impl LayerSettings {
    /// Returns true if a layer has these settings.
    pub fn contains(&self, layer: usize) -> bool {
        self.at.iter().any(|layers| layers.contains(layer))
    }
}

/// Serialized form of a pipeline. Its layers have all settings but those that all layers share.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SerializedPipeline {
    name: String,
    seed: u64,
    share: Share,
    dense_layers: Vec<Layers>,
    selectors: Vec<Box<dyn SelectorConfig>>,
    sampler: Option<Box<dyn SamplerConfig>>,
    estimator: Option<Box<dyn Estimator>>,
    layers: Vec<SerializedLayers>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SerializedLayers {
    at: Vec<Layers>,
    /// Accepted without an effect, because a serialized table is always complete. In a pipeline
    /// file it means that the table inherits no settings.
    #[serde(default, rename = "alone")]
    _alone: bool,
    #[serde(default)]
    selectors: Vec<Box<dyn SelectorConfig>>,
    sampler: Option<Box<dyn SamplerConfig>>,
    estimator: Option<Box<dyn Estimator>>,
}

impl From<SerializedPipeline> for PipelineConfig {
    fn from(serialized: SerializedPipeline) -> Self {
        let SerializedPipeline {
            name,
            seed,
            share,
            dense_layers,
            selectors,
            sampler,
            estimator,
            layers,
        } = serialized;
        let settings = |SerializedLayers { at, selectors, sampler, estimator, .. }| LayerSettings {
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
        struct Serialized<'a> {
            at: &'a [Layers],
            alone: bool,
            selectors: &'a [Box<dyn SelectorConfig>],
            #[serde(skip_serializing_if = "Option::is_none")]
            sampler: &'a Option<Box<dyn SamplerConfig>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            estimator: &'a Option<Box<dyn Estimator>>,
        }
        let PipelineConfig { selectors, sampler, estimator, .. } = &*self.pipeline;
        let table = Serialized { at: &self.at, alone: true, selectors, sampler, estimator };
        table.serialize(serializer)
    }
}
