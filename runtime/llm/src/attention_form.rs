//! Form of the attention of a layer, beside its keys and values.

use crate::config::LayerWindow;

/// Form of a layer's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionForm<'a> {
    /// Softmax scale, by which queries are multiplied.
    pub(crate) scale: f32,
    /// Soft cap of the logits.
    pub(crate) soft_cap: Option<f32>,
    /// Logits of the query heads' sinks, `[query_heads]`.
    pub(crate) sinks: Option<&'a [f32]>,
    /// Last keys that a query attends to; `None` means all.
    pub(crate) window: Option<LayerWindow>,
}
