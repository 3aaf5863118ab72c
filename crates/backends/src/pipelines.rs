//! Pipelines of KV heads, and the form of their softmax, from the options of a sequence.

use std::sync::Arc;

use vattention_core::{Error, Options, Pipeline, PipelineConfig, Result, Shape, Site, SoftmaxForm};

/// Builds the pipeline of a KV head.
///
/// # Errors
/// Returns an error if a plug-in of the pipeline does not support the site.
pub(crate) fn build_pipeline(
    config: &Arc<PipelineConfig>,
    site: Site,
    options: &Options,
) -> Result<Pipeline> {
    let mut pipeline = Pipeline::new(config, site)?;
    if options.omit_error_bars {
        pipeline.omit_error_bars();
    }
    Ok(pipeline)
}

/// Checks the softmax of a layer, and returns its scale.
///
/// # Errors
/// Returns an error if the scale is not finite, or if the [form](Options::softmax_form) is invalid.
pub(crate) fn check_softmax(shape: Shape, options: &Options) -> Result<f32> {
    let scale = options.scale.unwrap_or(shape.default_scale());
    if !scale.is_finite() {
        return Err(Error::shape("scale", "a finite number", scale));
    }
    options.softmax_form().check(shape.query_heads)?;
    Ok(scale)
}

/// Form of the softmax of a KV head's query heads. Forks share it.
#[derive(Clone, Debug)]
pub(crate) struct GroupSoftmax {
    soft_cap: Option<f32>,
    /// Logits of the attention sinks, `[group]`.
    sink_logits: Option<Arc<[f32]>>,
}

impl GroupSoftmax {
    /// Takes the part of a KV head from [checked](check_softmax) options.
    pub(crate) fn new(site: &Site, options: &Options) -> Self {
        let group = site.shape.group();
        let first = site.kv_head * group;
        let form = options.softmax_form().for_heads(first..first + group);
        Self { soft_cap: form.soft_cap, sink_logits: form.sink_logits.map(Into::into) }
    }

    pub(crate) fn form(&self) -> SoftmaxForm<'_> {
        SoftmaxForm { soft_cap: self.soft_cap, sink_logits: self.sink_logits.as_deref() }
    }
}
