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
        Self::rows_with(layer, shape, scale, queries, |exact, _| exact)
    }

    /// Maps exact attention and the attention weights `e / D`, `[visible]`, of each of these rows
    /// by `row`.
    pub(crate) fn rows_with<T: Clone>(
        layer: &TraceLayer,
        shape: &Shape,
        scale: f32,
        queries: usize,
        row: impl Fn(Self, ArrayView1<'_, f64>) -> T,
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
                    let (exact, weights) = attend(&keys, &values.view(), &query);
                    rows[t * heads + head] = Some(row(exact, weights.view()));
                }
            }
        }
        rows.into_iter().flatten().collect()
    }
}

/// Computes exact attention and the attention weights `[visible]` over `keys`
/// `[visible, head_dim]`; `values` may have more rows than `keys`.
fn attend(
    keys: &ArrayView2<'_, f64>,
    values: &ArrayView2<'_, f64>,
    query: &Array1<f64>,
) -> (Exact, Array1<f64>) {
    let logits = keys.dot(query);
    let shift = logits.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let weights = logits.mapv(|logit| (logit - shift).exp());
    let denominator = weights.sum();
    let weights = weights / denominator;
    let output = weights.dot(&values.slice(s![..keys.nrows(), ..]));
    (Exact { output, log_denominator: shift + denominator.ln() }, weights)
}
