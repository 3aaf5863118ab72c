//! Layers of a model as pipeline files name them, and what is said of some of them alone.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    Conflict,
    pipeline::{PipelineConfig, Share},
};
use crate::{
    Error, Result,
    plugin::{Estimator, SamplerConfig, SelectorConfig},
    promise::{Goal, Scope},
};

/// One layer (`3`), layers from one to before another (`"2..30"`), or all from one on (`"30.."`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// One.
    One(usize),
    /// From the first to before the second, which is larger.
    Range(usize, usize),
    /// This and all after it.
    From(usize),
}

impl Layers {
    /// Whether a layer is one of them.
    pub fn contains(self, layer: usize) -> bool {
        let (first, end) = self.bounds();
        first <= layer && end.is_none_or(|end| layer < end)
    }

    /// The first layer that is also one of the others.
    fn first_common(self, other: Self) -> Option<usize> {
        let first = self.bounds().0.max(other.bounds().0);
        (self.contains(first) && other.contains(first)).then_some(first)
    }

    /// The first, and the end, which is none of them.
    fn bounds(self) -> (usize, Option<usize>) {
        match self {
            Self::One(layer) => (layer, layer.checked_add(1)),
            Self::Range(first, end) => (first, Some(end)),
            Self::From(first) => (first, None),
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(layer) => write!(f, "{layer}"),
            Self::Range(first, end) => write!(f, "{first}..{end}"),
            Self::From(first) => write!(f, "{first}.."),
        }
    }
}

impl From<usize> for Layers {
    fn from(layer: usize) -> Self {
        Self::One(layer)
    }
}

impl Serialize for Layers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One(layer) => layer.serialize(serializer),
            Self::Range(..) | Self::From(_) => serializer.collect_str(self),
        }
    }
}

impl JsonSchema for Layers {
    fn schema_name() -> Cow<'static, str> {
        "Layers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description":
                "a layer (3), layers from one to before another (\"2..30\"), or all from one on (\"30..\")",
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+\\.\\.[0-9]*$" },
            ],
        })
    }
}

struct LayersVisitor;

impl de::Visitor<'_> for LayersVisitor {
    type Value = Layers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layer (3), layers from one to before another (\"2..30\"), or all from one on \
             (\"30..\")",
        )
    }

    fn visit_u64<E: de::Error>(self, layer: u64) -> Result<Layers, E> {
        let number = usize::try_from(layer).map(Layers::One);
        number.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(layer), &self))
    }

    fn visit_i64<E: de::Error>(self, layer: i64) -> Result<Layers, E> {
        match u64::try_from(layer) {
            Ok(layer) => self.visit_u64(layer),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(layer), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Layers, E> {
        let unreadable = || E::invalid_value(de::Unexpected::Str(text), &self);
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| unreadable());
        let (first, end) = text.split_once("..").ok_or_else(unreadable)?;
        let first = number(first)?;
        if end.trim().is_empty() {
            return Ok(Layers::From(first));
        }
        match number(end)? {
            end if first < end => Ok(Layers::Range(first, end)),
            _ => Err(E::custom(format!("no layer is in \"{text}\": its end is left out"))),
        }
    }
}

impl<'de> Deserialize<'de> for Layers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LayersVisitor)
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

    /// The first layer found that is also one of the others.
    fn common(&self, other: &Self) -> Option<usize> {
        let with = |layers: &Layers| other.at.iter().find_map(|other| layers.first_common(*other));
        self.at.iter().find_map(with)
    }
}

impl PipelineConfig {
    /// The pipeline of a layer: its own, or else this.
    pub fn at(self: &Arc<Self>, layer: usize) -> &Arc<Self> {
        let own = self.layers.iter().find(|settings| settings.contains(layer));
        own.map_or(self, |settings| &settings.pipeline)
    }

    /// The first selector that needs the classes of tokens at a layer, by name, if one does.
    pub fn needs_classes_at(self: &Arc<Self>, layer: usize) -> Option<&str> {
        let part = self.at(layer);
        if part.is_dense_at(layer) { None } else { part.own_needs_classes() }
    }

    /// This pipeline, and those of layers with settings of their own.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.layers.iter().map(|settings| &*settings.pipeline))
    }

    /// Checks that a model of `count` layers has the layers that this pipeline names. A range may
    /// end behind the last layer, but must contain a layer of the model.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the key that names such layers.
    pub fn expect_layers(&self, count: usize) -> Result<()> {
        refuse_beyond("dense_layers", &self.dense_layers, count)?;
        for (i, settings) in self.layers.iter().enumerate() {
            refuse_beyond(&format!("layers[{i}].at"), &settings.at, count)?;
        }
        Ok(())
    }

    /// What is wrong with the settings of layers.
    pub(crate) fn conflicts_of_layers(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        for (i, settings) in self.layers.iter().enumerate() {
            let at = format!("layers[{i}]");
            let within = settings.pipeline.own_conflicts().into_iter();
            found.extend(within.map(|one| Conflict { at: format!("{at}.{}", one.at), ..one }));
            let mut conflict = |message: String, help: &str| {
                found.push(Conflict { at: at.clone(), message, help: help.into() });
            };
            let before = self.layers[..i].iter().enumerate();
            for (j, layer) in before.filter_map(|(j, other)| Some((j, settings.common(other)?))) {
                conflict(
                    format!("layer {layer} is here and in layers[{j}]"),
                    "let each layer stand in one table: the end of a range is left out, so \
                     \"0..2\" and \"2..\" have none in common",
                );
            }
            if settings.pipeline.share != self.share {
                conflict("`share` is the same at all layers".into(), "share as the others do");
            }
            if let Some((here, elsewhere)) = self.other_goal(&settings.pipeline) {
                conflict(
                    format!("{here} at these layers, and {elsewhere} at others"),
                    "a promise is counted over all layers, so it must be the same at each that is \
                     not dense; sizes, the mode and the sampler may differ",
                );
            }
        }
        found
    }

    /// What a part promises or says of its error, and what another does, if that is something else.
    fn other_goal(&self, part: &Self) -> Option<(String, String)> {
        let words = |goal: Option<Goal>| {
            let Some(goal) = goal else { return "nothing is promised".to_owned() };
            let Goal { target, delta, scope, .. } = goal;
            let scope = if scope == Scope::Step { ", scope step" } else { "" };
            let within = match goal.epsilon() {
                Some(epsilon) => format!("is promised within epsilon {}", epsilon.get()),
                None => "has an error bar".into(),
            };
            format!("{target} {within}, delta {}{scope}", delta.get())
        };
        let alike = |goal: Goal| (goal.target, goal.delta, goal.scope, goal.epsilon());
        let mut sparse = self.parts().filter(|part| !part.reads_everything());
        let [here, first] = [part.goal(), sparse.next()?.goal()];
        let promised = [here, first].into_iter().flatten().any(|goal| goal.epsilon().is_some());
        let compared = (here.map(alike), first.map(alike));
        let differs = match compared {
            (Some(here), Some(first)) => here != first,
            (here, first) => promised && here != first,
        };
        (!part.reads_everything() && differs).then(|| (words(here), words(first)))
    }
}

/// Checks that a model of `count` layers has the layers that a key names.
fn refuse_beyond(key: &str, named: &[Layers], count: usize) -> Result<()> {
    let beyond = named.iter().position(|layers| layers.bounds().0 >= count);
    let Some(i) = beyond else { return Ok(()) };
    let message = format!(
        "layer {}, which the model does not have; expected 0 to {}",
        named[i],
        count.saturating_sub(1)
    );
    let help = "name layers of the model, or leave the entry out".into();
    Err(Error::Conflict(Conflict { at: format!("{key}[{i}]"), message, help }))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Layers, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn layers_are_read_and_written() {
        for (text, inside, outside) in [
            ("3", vec![3], vec![0, 2, 4]),
            ("\"2..30\"", vec![2, 29], vec![0, 1, 30, 31]),
            ("\"30..\"", vec![30, 31, usize::MAX], vec![0, 29]),
        ] {
            let layers = read(text).unwrap();
            assert_eq!(serde_json::to_string(&layers).unwrap(), text);
            assert!(inside.into_iter().all(|layer| layers.contains(layer)), "{text}");
            assert!(!outside.into_iter().any(|layer| layers.contains(layer)), "{text}");
        }
        for bad in ["-1", "1.5", "\"3\"", "\"..4\"", "\"2..=4\"", "\"a..b\"", "\"2...4\"", "true"] {
            assert!(read(bad).unwrap_err().contains("a layer (3), layers from"), "{bad}");
        }
        for empty in ["\"4..4\"", "\"7..3\""] {
            assert!(read(empty).unwrap_err().contains("no layer is in"), "{empty}");
        }
    }

    #[test]
    fn layers_beyond_a_model_are_refused_by_their_key() {
        let pipeline = |dense: &[&str]| PipelineConfig {
            dense_layers: dense.iter().map(|text| read(text).unwrap()).collect(),
            ..PipelineConfig::default()
        };
        for fine in ["2", "\"0..77\"", "\"2..\""] {
            pipeline(&[fine]).expect_layers(3).unwrap();
        }
        for (beyond, shown) in [("77", "77"), ("3", "3"), ("\"3..5\"", "3..5"), ("\"9..\"", "9..")]
        {
            let said = pipeline(&["0", beyond]).expect_layers(3).unwrap_err().to_string();
            let expected = format!(
                "dense_layers[1]: layer {shown}, which the model does not have; expected 0 to 2"
            );
            assert_eq!(said, expected);
        }
        let own = LayerSettings { at: vec![5.into()], pipeline: Arc::default() };
        let settings = PipelineConfig { layers: vec![own], ..PipelineConfig::default() };
        settings.expect_layers(6).unwrap();
        let said = settings.expect_layers(5).unwrap_err().to_string();
        assert!(said.starts_with("layers[0].at[0]: layer 5, which"), "{said}");
    }

    #[test]
    fn layers_in_common_are_found() {
        let common = |a, b| read(a).unwrap().first_common(read(b).unwrap());
        assert_eq!(common("\"2..30\"", "\"29..\""), Some(29));
        assert_eq!(common("\"2..30\"", "\"30..\""), None);
        assert_eq!(common("5", "\"2..30\""), Some(5));
        assert_eq!(common("1", "\"2..30\""), None);
        assert_eq!(common("\"9..\"", "\"2..\""), Some(9));
        assert_eq!(common("7", "7"), Some(7));
    }
}
