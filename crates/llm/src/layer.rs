//! One layer but for its attention, which is somebody else's.

use candle_core::{Result as Numbers, Tensor};

use crate::Result;
use crate::config::Config;
use crate::linear::{FeedForward, Linear, Norm};
use crate::rope::Angles;
use crate::weights::Weights;

/// The weights of one layer. Tokens are rows: `x` is `[tokens, hidden_size]`.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    input_norm: Norm,
    query: Projection,
    key: Projection,
    value: Projection,
    output: Linear,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
}

/// Queries, keys or values of all heads.
#[derive(Clone, Debug)]
struct Projection {
    linear: Linear,
    heads: usize,
    head_dim: usize,
    /// Normalises each head.
    norm: Option<Norm>,
}

impl Layer {
    pub(crate) fn open(weights: &mut Weights, number: usize, config: &Config) -> Result<Self> {
        let (hidden, epsilon) = (config.hidden_size, config.norm_epsilon);
        let (query_heads, kv_heads) = (config.shape.query_heads, config.shape.kv_heads);
        let at = |part: &str| format!("model.layers.{number}.{part}");
        let mut project = |part: &str, heads: usize, norm: Option<&str>| {
            Projection::open(weights, &at("self_attn"), (part, norm), heads, config)
        };
        let normed = config.normalises_heads();
        let query = project("q_proj", query_heads, normed.then_some("q_norm"))?;
        let key = project("k_proj", kv_heads, normed.then_some("k_norm"))?;
        let value = project("v_proj", kv_heads, None)?;
        let sizes = [query_heads * config.shape.value_dim, hidden];
        let output = Linear::open(weights, &at("self_attn.o_proj"), sizes, config.biases.output)?;
        let mut norm = |part: &str| Norm::open(weights, &at(part), hidden, epsilon);
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            feed_forward_norm: norm("post_attention_layernorm")?,
            feed_forward: FeedForward::open(weights, &at("mlp"), config)?,
            query,
            key,
            value,
            output,
        })
    }

    pub(crate) fn query_heads(&self) -> usize {
        self.query.heads
    }

    /// What the projections are of, `[tokens, hidden_size]`.
    pub(crate) fn normed(&self, x: &Tensor) -> Numbers<Tensor> {
        self.input_norm.apply(x)
    }

    /// Keys and values `[kv_heads, tokens, head_dim]` of what is normed.
    pub(crate) fn keys_values(
        &self,
        normed: &Tensor,
        angles: &Angles,
    ) -> Numbers<(Tensor, Tensor)> {
        Ok((angles.turn(&self.key.apply(normed)?)?, self.value.apply(normed)?))
    }

    /// Queries `[query_heads, tokens, head_dim]` of what is normed.
    pub(crate) fn queries(&self, normed: &Tensor, angles: &Angles) -> Numbers<Tensor> {
        angles.turn(&self.query.apply(normed)?)
    }

    /// What comes after attention, from its output `[query_heads, tokens, value_dim]`.
    pub(crate) fn finish(&self, x: &Tensor, attended: &Tensor) -> Numbers<Tensor> {
        let attended = attended.transpose(0, 1)?.flatten_from(1)?;
        let x = (x + self.output.apply(&attended)?)?;
        &x + self.feed_forward.apply(&self.feed_forward_norm.apply(&x)?)?
    }
}

impl Projection {
    fn open(
        weights: &mut Weights,
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
        Ok(Self { linear, heads, head_dim, norm })
    }

    /// `[tokens, hidden_size]` to `[heads, tokens, head_dim]`
    fn apply(&self, x: &Tensor) -> Numbers<Tensor> {
        let heads = self.linear.apply(x)?.reshape((x.dim(0)?, self.heads, self.head_dim))?;
        let heads = match &self.norm {
            Some(norm) => norm.apply(&heads)?,
            None => heads,
        };
        heads.transpose(0, 1)?.contiguous()
    }
}
