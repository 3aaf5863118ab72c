//! One transformer layer without its attention, which a backend computes.

use crate::Result;
use crate::config::Config;
use crate::feed_forward::FeedForward;
use crate::inputs::LinearInputs;
use crate::linear::{Linear, LinearScratch, Norm};
use crate::rope::Angles;
use crate::weights::CheckpointTensors;

/// Weights of one layer. Tokens are rows: `x` is `[tokens, hidden_size]`.
#[derive(Clone, Debug)]
pub(crate) struct DecoderLayer {
    input_norm: Norm,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Linear,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

/// Projection to the queries, keys or values of all heads.
#[derive(Clone, Debug)]
struct Projection {
    linear: Linear,
    /// Norm of each head.
    norm: Option<Norm>,
}

impl DecoderLayer {
    pub(crate) fn open(
        weights: &mut CheckpointTensors,
        number: usize,
        config: &Config,
    ) -> Result<Self> {
        let (hidden, epsilon) = (config.hidden_size, config.norm_epsilon);
        let (query_heads, kv_heads) = (config.shape.query_heads, config.shape.kv_heads);
        let name = |part: &str| format!("model.layers.{number}.{part}");
        let mut project = |part: &str, heads: usize, norm: Option<&str>| {
            Projection::open(weights, &name("self_attn"), (part, norm), heads, config)
        };
        let normed = config.normalises_heads();
        let query = project("q_proj", query_heads, normed.then_some("q_norm"))?;
        let key = project("k_proj", kv_heads, normed.then_some("k_norm"))?;
        let value = project("v_proj", kv_heads, None)?;
        let sizes = [query_heads * config.shape.value_dim, hidden];
        let output = Linear::open(weights, &name("self_attn.o_proj"), sizes, config.biases.output)?;
        let mut norm = |part: &str| Norm::open(weights, &name(part), hidden, epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            feed_forward_norm: norm("post_attention_layernorm")?,
            feed_forward: FeedForward::open(weights, &name("mlp"), number, config)?,
            query,
            key,
            value,
            output,
        })
    }

    /// Normalises the input of the projections, `[tokens, hidden_size]`.
    pub(crate) fn normalise_input(&self, x: &[f32], normed: &mut [f32]) {
        self.input_norm.apply(x, normed);
    }

    /// Number of elements of a token's row.
    pub(crate) fn hidden_size(&self) -> usize {
        self.input_norm.size()
    }

    /// Computes queries `[tokens, query_heads, head_dim]`, keys `[tokens, kv_heads, head_dim]` and
    /// values `[tokens, kv_heads, value_dim]` from the normalised input.
    pub(crate) fn project(
        &self,
        normed: &LinearInputs<'_>,
        angles: Angles<'_>,
        [queries, keys, values]: [&mut [f32]; 3],
        scratch: &mut LinearScratch,
    ) {
        let maps = [
            (&self.query.linear, &mut *queries),
            (&self.key.linear, &mut *keys),
            (&self.value.linear, values),
        ];
        Linear::apply_all(normed, maps, scratch);
        self.place_queries(queries, angles);
        self.place_keys(keys, angles);
    }

    /// Normalises the heads of projected queries, and applies their rotary embedding and scaling.
    fn place_queries(&self, queries: &mut [f32], angles: Angles<'_>) {
        self.query.normalise_heads(queries);
        angles.rotate(queries);
        angles.sharpen(queries);
    }

    /// Normalises the heads of projected keys, and applies their rotary embedding.
    fn place_keys(&self, keys: &mut [f32], angles: Angles<'_>) {
        self.key.normalise_heads(keys);
        angles.rotate(keys);
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
        let tokens = x.len() / self.hidden_size();
        self.output.add(&LinearInputs::new(attended, tokens), x, scratch);
        self.feed_forward_norm.apply(x, normed);
        self.feed_forward.add(&LinearInputs::new(normed, tokens), x, scratch);
    }
}

impl Projection {
    fn open(
        weights: &mut CheckpointTensors,
        at: &str,
        (part, norm): (&str, Option<&str>),
        heads: usize,
        config: &Config,
    ) -> Result<Self> {
        let head_dim = config.shape.head_dim;
        let sizes = [config.hidden_size, heads * head_dim];
        let linear = Linear::open(weights, &format!("{at}.{part}"), sizes, config.biases.inputs)?;
        let norm = norm
            .map(|name| Norm::open(weights, &format!("{at}.{name}"), head_dim, config.norm_epsilon))
            .transpose()?;
        Ok(Self { linear, norm })
    }

    /// Normalises each head of `[tokens, heads, head_dim]`, if the model has such a norm.
    fn normalise_heads(&self, y: &mut [f32]) {
        if let Some(norm) = &self.norm {
            norm.apply_in_place(y);
        }
    }
}
