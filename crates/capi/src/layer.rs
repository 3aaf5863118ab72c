//! The model's layer, as C describes it.

use std::sync::Arc;

use vattention::Shape;

use crate::pointers::{borrow, read_struct, versioned_struct};
use crate::status::CallError;

/// Dimensions and softmax of one attention layer of the model.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct va_layer {
    /// sizeof(va_layer).
    pub size: usize,
    /// Number of query heads, a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Number of elements of a query or a key.
    pub head_dim: usize,
    /// Number of elements of a value; 0 means `head_dim`.
    pub value_dim: usize,
    /// Index of the layer in the model, at most 4095. It keys the random samples, and pipelines may
    /// have settings for single layers.
    pub index: usize,
    /// Softmax scale, by which queries are multiplied; 0 means 1 / sqrt(head_dim).
    pub scale: f32,
    /// Cap of the logits: a scaled logit becomes soft_cap * tanh(logit / soft_cap). 0 means none.
    pub soft_cap: f32,
    /// Logits of learned attention sinks, `[query_heads]`, or NULL. Each adds its exponential to
    /// the denominator.
    pub sink_logits: *const f32,
}

versioned_struct!(va_layer, sink_logits: *const f32);

/// A layer in the library's types.
#[derive(Debug)]
pub(crate) struct LayerOfModel {
    pub(crate) shape: Shape,
    pub(crate) index: usize,
    pub(crate) scale: Option<f32>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) sink_logits: Option<Arc<[f32]>>,
}

/// Reads a layer.
///
/// # Safety
/// A valid `layer` has `query_heads` sink logits, or none.
pub(crate) unsafe fn read_layer(layer: *const va_layer) -> Result<LayerOfModel, CallError> {
    // SAFETY: the caller vouches for the struct.
    let layer = unsafe { read_struct(layer, "layer") }?;
    let va_layer { query_heads, kv_heads, head_dim, .. } = layer;
    let value_dim = if layer.value_dim == 0 { head_dim } else { layer.value_dim };
    let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
    // The number of sinks is that of the query heads, so it must be valid first.
    shape.check()?;
    let sink_logits = if layer.sink_logits.is_null() {
        None
    } else {
        // SAFETY: the caller vouches for the sinks.
        Some(unsafe { borrow(layer.sink_logits, query_heads, "layer.sink_logits") }?.into())
    };
    let if_set = |number: f32| (number != 0.0).then_some(number);
    let (scale, soft_cap) = (if_set(layer.scale), if_set(layer.soft_cap));
    Ok(LayerOfModel { shape, index: layer.index, scale, soft_cap, sink_logits })
}
