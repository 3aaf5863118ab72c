//! Heads to measure with: synthetic ones, or those of a trace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ndarray::{Array3, Axis, s};
use vattention_core::{PipelineConfig, Shape, SoftmaxForm, TokenClass};
use vattention_trace::{Trace, TraceLayer};

use super::numbers;
use crate::{Error, Result};

/// Step number of the prompt's query, which no decode step has.
const PROMPT: usize = u32::MAX as usize;

/// Keys, values and queries of the layers that are measured.
#[derive(Clone, Debug)]
pub enum BenchHeads {
    /// Synthetic numbers, about normal, with a few long keys.
    MadeUp(Shape),
    /// Layers of a trace.
    Traced(TracedHeads),
}

/// Layers of a trace, used cyclically. Beyond the trace's tokens, tokens repeat from the first on.
#[derive(Clone, Debug)]
pub struct TracedHeads {
    /// File of the trace, as given.
    path: PathBuf,
    /// Factor of the queries, unless it is the default.
    scale: Option<f32>,
    shape: Shape,
    /// Numbers of the layers in the model, and the layers.
    layers: Arc<Vec<(usize, TraceLayer)>>,
}

impl TracedHeads {
    /// Reads all layers of a trace.
    ///
    /// # Errors
    /// If the trace has no layers or is damaged, its layers have different shapes, or a layer has
    /// no queries.
    pub fn new(trace: &Trace) -> Result<Self> {
        let (mut layers, mut shape) = (Vec::new(), None);
        for (number, layout) in trace.layers() {
            trace.expect_queries(number, &layout)?;
            let first = *shape.get_or_insert(layout.shape);
            if layout.shape != first {
                let reason = format!(
                    "layer {number} has another shape than the layers before it; \
                     expected equal shapes"
                );
                return Err(Error::trace(trace.path(), reason));
            }
            layers.extend(trace.layer(number).transpose()?.map(|layer| (number, layer)));
        }
        let shape = shape.ok_or_else(|| Error::trace(trace.path(), "it has no layers"))?;
        let (path, scale) = (trace.path().into(), trace.info().scale);
        Ok(Self { path, scale, shape, layers: Arc::new(layers) })
    }

    /// Largest number of tokens of any layer.
    pub fn tokens(&self) -> usize {
        self.layers.iter().map(|(_, layer)| layer.keys.dim().1).max().unwrap_or_default()
    }

    fn layer(&self, layer: usize) -> &TraceLayer {
        &self.layers[layer % self.layers.len()].1
    }
}

impl BenchHeads {
    /// Dimensions of a layer.
    pub fn shape(&self) -> Shape {
        match self {
            Self::MadeUp(shape) => *shape,
            Self::Traced(traced) => traced.shape,
        }
    }

    /// File of the trace, as given; `None` for synthetic heads.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::MadeUp(_) => None,
            Self::Traced(traced) => Some(&traced.path),
        }
    }

    /// Number in the model of the `layer`-th layer.
    pub fn number(&self, layer: usize) -> usize {
        match self {
            Self::MadeUp(_) => layer,
            Self::Traced(traced) => traced.layers[layer % traced.layers.len()].0,
        }
    }

    /// Sequence number of the `layer`-th layer: the number of earlier uses of the same layer of the
    /// trace.
    pub(super) fn sequence(&self, layer: usize) -> u32 {
        match self {
            Self::MadeUp(_) => 0,
            Self::Traced(traced) => (layer / traced.layers.len()) as u32,
        }
    }

    /// Form of the softmax of a layer's query heads.
    pub(super) fn form(&self, layer: usize) -> SoftmaxForm<'_> {
        match self {
            Self::MadeUp(_) => SoftmaxForm::default(),
            Self::Traced(traced) => traced.layer(layer).form(),
        }
    }

    pub(super) fn scale(&self) -> Option<f32> {
        match self {
            Self::MadeUp(_) => None,
            Self::Traced(traced) => traced.scale,
        }
    }

    /// Keys `[kv_heads, count, head_dim]` of `count` tokens, beginning with `first`.
    pub(super) fn keys(&self, layer: usize, first: usize, count: usize) -> Array3<f32> {
        match self {
            Self::MadeUp(shape) => numbers::keys(shape, layer, first, count),
            Self::Traced(traced) => repeat_rows(&traced.layer(layer).keys, first, count),
        }
    }

    /// Values `[kv_heads, count, value_dim]` of `count` tokens, beginning with `first`.
    pub(super) fn values(&self, layer: usize, first: usize, count: usize) -> Array3<f32> {
        match self {
            Self::MadeUp(shape) => numbers::values(shape, layer, first, count),
            Self::Traced(traced) => repeat_rows(&traced.layer(layer).values, first, count),
        }
    }

    /// Classes `[count]` of `count` tokens, beginning with `first`, if they are known.
    pub(super) fn classes(
        &self,
        layer: usize,
        first: usize,
        count: usize,
    ) -> Option<Vec<TokenClass>> {
        let Self::Traced(traced) = self else { return None };
        let classes = traced.layer(layer).classes.as_ref()?;
        Some((first..first + count).map(|token| classes[token % classes.len()]).collect())
    }

    /// Refuses a pipeline that needs the classes of tokens, if they are not known.
    ///
    /// # Errors
    /// [`Error::Pipeline`] for synthetic heads, [`Error::Classes`] for a trace.
    pub fn expect_classes(&self, pipeline: &Arc<PipelineConfig>, layers: usize) -> Result<()> {
        let unclassed = (0..layers).filter(|&layer| self.classes(layer, 0, 0).is_none());
        let mut layers = unclassed.map(|layer| self.number(layer));
        let needed = layers.find_map(|layer| Some((layer, pipeline.needs_classes_at(layer)?)));
        let Some((layer, selector)) = needed else { return Ok(()) };
        let selector = selector.to_owned();
        Err(match self {
            Self::Traced(traced) => Error::Classes { trace: traced.path.clone(), layer, selector },
            Self::MadeUp(_) => {
                let source = vattention_core::Error::Classes { selector };
                Error::Pipeline { file: pipeline.name.clone(), layer, source }
            }
        })
    }

    /// Queries `[query_heads, 1, head_dim]` of one step.
    pub(super) fn queries(&self, layer: usize, step: usize) -> Array3<f32> {
        match self {
            Self::MadeUp(shape) => numbers::queries(shape, layer, step),
            Self::Traced(traced) => repeat_rows(&traced.layer(layer).queries, step, 1),
        }
    }

    /// Queries of the last tokens of a prompt, `[query_heads, prompt, head_dim]`; at least one.
    pub(super) fn prompt(&self, layer: usize, tokens: usize) -> Array3<f32> {
        match self {
            Self::MadeUp(_) => self.queries(layer, PROMPT),
            Self::Traced(traced) => match &traced.layer(layer).prompt {
                Some(prompt) => {
                    let first = prompt.dim().1.saturating_sub(tokens);
                    prompt.slice(s![.., first.., ..]).to_owned()
                }
                None => self.queries(layer, 0),
            },
        }
    }
}

/// Returns `count` rows of `[heads, rows, dim]`, beginning with `first`; rows repeat cyclically.
fn repeat_rows(array: &Array3<f32>, first: usize, count: usize) -> Array3<f32> {
    let rows: Vec<usize> = (first..first + count).map(|row| row % array.dim().1).collect();
    array.select(Axis(1), &rows)
}
