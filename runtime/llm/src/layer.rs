//! One transformer layer without its attention, which a backend computes.

use std::sync::Arc;

use crate::Result;
use crate::attention_form::AttentionForm;
use crate::config::{Config, HeadNorm, LayerForm};
use crate::feed_forward::FeedForward;
use crate::inputs::LinearInputs;
use crate::linear::{Linear, LinearScratch, Norm};
use crate::rope::{Positions, Tables};
use crate::weights::CheckpointTensors;

/// Weights of one layer. Tokens are rows: `x` is `[tokens, hidden_size]`.
#[derive(Clone, Debug)]
pub(crate) struct DecoderLayer {
    hidden_size: usize,
    input_norm: Option<Norm>,
    query: Projection,
    key: Projection,
    value: Linear,
    output: Linear,
    output_norm: Option<Norm>,
    feed_forward_norm: Option<Norm>,
    feed_forward: FeedForward,
    feed_forward_output_norm: Option<Norm>,
    residual_scale: f32,
    /// Window and rotary embedding.
    form: LayerForm,
    /// Softmax scale.
    scale: f32,
    /// Soft cap of the attention logits.
    soft_cap: Option<f32>,
    /// Logits of the query heads' sinks, `[query_heads]`.
    sinks: Option<Arc<[f32]>>,
}

/// Projection to the queries or keys of all heads.
#[derive(Clone, Debug)]
struct Projection {
    linear: Linear,
    /// Norm of each head, or of all heads together.
    norm: Option<Norm>,
}

impl DecoderLayer {
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        number: usize,
        config: &Config,
    ) -> Result<Self> {
        let Config { hidden_size, norm_epsilon, biases, block, shape, .. } = config;
        let name = |part: &str| format!("blk.{number}.{part}");
        let sizes = [
            shape.query_heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
            shape.kv_heads * shape.value_dim,
        ];
        let names = ["attn_q", "attn_k", "attn_v"].map(name);
        let parts = std::array::from_fn(|i| (names[i].as_str(), sizes[i]));
        let [query, key, value] =
            Linear::open_parts(weights, &name("attn_qkv"), *hidden_size, parts, biases.inputs)?;
        let attended = [shape.query_heads * shape.value_dim, *hidden_size];
        let output = Linear::open(weights, &name("attn_output"), attended, biases.output)?;
        let form = config.layer_forms[number];
        let mut project = |linear, part: &str, heads: usize| {
            let mut open = |size| Norm::open(weights, &name(part), size, *norm_epsilon);
            let norm = match block.head_norm {
                HeadNorm::PerHead => Some(open(shape.head_dim)?),
                HeadNorm::AllHeads => Some(open(heads * shape.head_dim)?),
                HeadNorm::Unweighted if form.rope.is_some() => {
                    Some(Norm::unweighted(shape.head_dim, *norm_epsilon))
                }
                HeadNorm::Unweighted | HeadNorm::None => None,
            };
            Ok::<_, crate::Error>(Projection { linear, norm })
        };
        let query = project(query, "attn_q_norm", shape.query_heads)?;
        let key = project(key, "attn_k_norm", shape.kv_heads)?;
        let mut norm = |part: &str, exists: bool| {
            let open = || Norm::open(weights, &name(part), *hidden_size, *norm_epsilon);
            exists.then(open).transpose()
        };
        let input_norm = norm("attn_norm", block.input_norms)?;
        let output_norm = norm("post_attention_norm", block.output_norms)?;
        let feed_forward_norm = norm("ffn_norm", block.input_norms)?;
        let feed_forward_output_norm = norm("post_ffw_norm", block.output_norms)?;
        let sinks = block
            .sinks
            .then(|| weights.vector(&name("attn_sinks.weight"), shape.query_heads))
            .transpose()?;
        Ok(Self {
            hidden_size: *hidden_size,
            input_norm,
            query,
            key,
            value,
            output,
            output_norm,
            feed_forward_norm,
            feed_forward: FeedForward::open(weights, number, config)?,
            feed_forward_output_norm,
            residual_scale: block.residual_scale,
            form,
            scale: block.scale.unwrap_or(shape.default_scale()),
            soft_cap: block.attention_cap,
            sinks: sinks.map(Arc::from),
        })
    }

    /// Form of the layer's attention.
    pub(crate) fn form(&self) -> AttentionForm<'_> {
        let Self { scale, soft_cap, form, .. } = *self;
        AttentionForm { scale, soft_cap, sinks: self.sinks.as_deref(), window: form.window }
    }

    /// Logits of the query heads' sinks, `[query_heads]`.
    pub(crate) fn sinks(&self) -> Option<Arc<[f32]>> {
        self.sinks.clone()
    }

    /// Normalises the input of the projections, `[tokens, hidden_size]`.
    pub(crate) fn normalise_input(&self, x: &[f32], normed: &mut [f32]) {
        normalise(self.input_norm.as_ref(), x, normed);
    }

    /// Number of elements of a token's row.
    pub(crate) fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Returns all positions of the tables, as this layer uses them.
    pub(crate) fn positions<'t>(&self, tables: &'t Tables) -> Positions<'t> {
        tables.positions(self.form.rope, self.form.scales_queries)
    }

    /// Computes queries `[tokens, query_heads, head_dim]`, keys `[tokens, kv_heads, head_dim]` and
    /// values `[tokens, kv_heads, value_dim]` from the normalised input.
    pub(crate) fn project(
        &self,
        normed: &LinearInputs<'_>,
        positions: Positions<'_>,
        [queries, keys, values]: [&mut [f32]; 3],
        scratch: &mut LinearScratch,
    ) {
        let maps = [
            (&self.query.linear, &mut *queries),
            (&self.key.linear, &mut *keys),
            (&self.value, values),
        ];
        Linear::apply_all(normed, maps, scratch);
        self.query.normalise_heads(queries);
        self.key.normalise_heads(keys);
        positions.apply(queries, keys);
    }

    /// Applies the output projection to the attention's output `[tokens, query_heads, value_dim]`,
    /// and the feed-forward network, so that `x` becomes the input of the next layer. `normed` is
    /// scratch memory, `[tokens, hidden_size]`.
    pub(crate) fn finish(
        &self,
        x: &mut [f32],
        attended: &[f32],
        normed: &mut [f32],
        scratch: &mut LinearScratch,
    ) {
        let tokens = x.len() / self.hidden_size;
        self.add_branch(x, self.output_norm.as_ref(), scratch, |y, scratch| {
            self.output.add(&LinearInputs::new(attended, tokens), y, scratch);
        });
        normalise(self.feed_forward_norm.as_ref(), x, normed);
        self.add_branch(x, self.feed_forward_output_norm.as_ref(), scratch, |y, scratch| {
            self.feed_forward.add(&LinearInputs::new(normed, tokens), y, scratch);
        });
    }

    /// Adds an output to `x`: normalised, if there is a norm, and scaled. `add` adds the output to
    /// its argument.
    fn add_branch(
        &self,
        x: &mut [f32],
        norm: Option<&Norm>,
        scratch: &mut LinearScratch,
        add: impl FnOnce(&mut [f32], &mut LinearScratch),
    ) {
        if norm.is_none() && self.residual_scale == 1.0 {
            return add(x, scratch);
        }
        let mut branch = std::mem::take(&mut scratch.branch);
        branch.clear();
        branch.resize(x.len(), 0.0);
        add(&mut branch, scratch);
        if let Some(norm) = norm {
            norm.apply_in_place(&mut branch);
        }
        for (x, y) in x.iter_mut().zip(&branch) {
            *x += self.residual_scale * y;
        }
        scratch.branch = branch;
    }
}

/// Normalises rows of `x` into `normed`; without a norm, copies them.
fn normalise(norm: Option<&Norm>, x: &[f32], normed: &mut [f32]) {
    match norm {
        Some(norm) => norm.apply(x, normed),
        None => normed.copy_from_slice(x),
    }
}

impl Projection {
    /// Normalises each head of `[tokens, heads, head_dim]`, or all heads of each token, if the
    /// model has such a norm.
    fn normalise_heads(&self, y: &mut [f32]) {
        if let Some(norm) = &self.norm {
            norm.apply_in_place(y);
        }
    }
}
