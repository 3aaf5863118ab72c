//! Exact attention in f64: the reference that pipelines are compared with.

use ndarray::{Array1, ArrayView1, ArrayView2, Axis, s};
use vattention_core::Shape;

use vattention_trace::TraceLayer;

/// Exact attention of one row.
#[derive(Clone, Debug)]
pub struct Exact {
    /// `N / D`, `[value_dim]`.
    pub output: Array1<f64>,
    /// `ln D`.
    pub log_denominator: f64,
}

impl Exact {
    /// Computes exact attention of a layer's last `queries` queries, in (query, query head) order,
    /// with queries multiplied by `scale`.
    pub fn rows(layer: &TraceLayer, shape: &Shape, scale: f32, queries: usize) -> Vec<Self> {
        Self::rows_with(layer, shape, scale, queries, |exact, _, _| exact)
    }

    /// Maps exact attention, the attention weights `e / D`, `[visible]`, and the weight of the
    /// attention sink, 0 without a sink, of each of these rows by `row`.
    pub(crate) fn rows_with<T: Clone>(
        layer: &TraceLayer,
        shape: &Shape,
        scale: f32,
        queries: usize,
        row: impl Fn(Self, ArrayView1<'_, f64>, f64) -> T,
    ) -> Vec<T> {
        let (heads, all, _) = layer.queries.dim();
        let mut rows = vec![None; heads * queries];
        for kv_head in 0..shape.kv_heads {
            let keys = layer.keys.index_axis(Axis(0), kv_head).mapv(f64::from);
            let values = layer.values.index_axis(Axis(0), kv_head).mapv(f64::from);
            for head in kv_head * shape.group()..(kv_head + 1) * shape.group() {
                for t in 0..queries {
                    let index = all - queries + t;
                    let visible = layer.visible_to(index);
                    let query = layer.queries.slice(s![head, index, ..]);
                    let query = query.mapv(|q| f64::from(q) * f64::from(scale));
                    let keys = keys.slice(s![..visible, ..]);
                    let mut logits = keys.dot(&query);
                    if let Some(cap) = layer.soft_cap.map(f64::from) {
                        logits.mapv_inplace(|logit| cap * (logit / cap).tanh());
                    }
                    let sink = layer.form().sink_logit(head).map_or(f64::NEG_INFINITY, f64::from);
                    let (exact, weights) = attend(&logits, sink, &values.view());
                    let sink = (sink - exact.log_denominator).exp();
                    rows[t * heads + head] = Some(row(exact, weights.view(), sink));
                }
            }
        }
        rows.into_iter().flatten().collect()
    }
}

/// Computes exact attention and the attention weights `[visible]` from `logits` `[visible]` and the
/// logit of the attention sink, which is −∞ without a sink; `values` may have more rows.
fn attend(logits: &Array1<f64>, sink: f64, values: &ArrayView2<'_, f64>) -> (Exact, Array1<f64>) {
    let shift = logits.fold(sink, |a, &b| a.max(b));
    let weights = logits.mapv(|logit| (logit - shift).exp());
    let denominator = weights.sum() + (sink - shift).exp();
    let weights = weights / denominator;
    let output = weights.dot(&values.slice(s![..logits.len(), ..]));
    (Exact { output, log_denominator: shift + denominator.ln() }, weights)
}
