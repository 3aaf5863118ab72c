//! Keys of `config.json`, as transformers 4 and 5 write them.

use std::num::NonZeroUsize;

use serde::Deserialize;
use serde_json::Value;

use crate::rope::{Scaling, Sharpening, yarn_length};

/// Largest dimension; the product of two fits into `usize`.
const MAX_SIZE: usize = i32::MAX as usize;

/// Keys that this crate uses; the other keys do not change the computation.
#[derive(Debug, Deserialize)]
pub(super) struct Raw {
    #[serde(default)]
    pub(super) architectures: Vec<String>,
    pub(super) hidden_size: Option<usize>,
    pub(super) intermediate_size: Option<usize>,
    pub(super) moe_intermediate_size: Option<usize>,
    /// Number of experts; transformers 5 renames the key.
    #[serde(alias = "num_local_experts")]
    pub(super) num_experts: Option<usize>,
    pub(super) num_experts_per_tok: Option<usize>,
    pub(super) norm_topk_prob: Option<bool>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    /// Layers whose number, counted from 1, is a multiple of this have experts.
    decoder_sparse_step: Option<NonZeroUsize>,
    pub(super) num_hidden_layers: Option<usize>,
    pub(super) num_attention_heads: Option<usize>,
    pub(super) num_key_value_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) vocab_size: Option<usize>,
    pub(super) max_position_embeddings: Option<usize>,
    pub(super) sliding_window: Option<usize>,
    pub(super) use_sliding_window: Option<bool>,
    /// Number of first layers without a sliding window.
    pub(super) max_window_layers: Option<usize>,
    /// Kind of attention of each layer, in place of `max_window_layers`.
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) tie_word_embeddings: Option<bool>,
    pub(super) attention_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    rms_norm_eps: Option<f64>,
    hidden_act: Option<String>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f32>,
    rope_scaling: Option<Rotary>,
    /// Parameters of transformers 5, which replace `rope_theta` and `rope_scaling`.
    rope_parameters: Option<Rotary>,
    quantization_config: Option<Value>,
    pub(super) eos_token_id: Option<Ends>,
}

#[derive(Debug, Deserialize)]
struct Rotary {
    /// Kind of scaling; old files call the key `type`.
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
    beta_fast: Option<f32>,
    beta_slow: Option<f32>,
    mscale: Option<f32>,
    mscale_all_dim: Option<f32>,
    attention_factor: Option<f32>,
    /// True, the default, if the range of pairs that yarn interpolates is rounded to whole numbers.
    truncate: Option<bool>,
    llama_4_scaling_beta: Option<f32>,
}

/// Keys of `generation_config.json` that this crate uses.
#[derive(Debug, Deserialize)]
pub(super) struct GenerationFile {
    pub(super) eos_token_id: Option<Ends>,
}

/// Tokens that end a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Ends {
    One(u32),
    More(Vec<u32>),
}

impl From<Ends> for Vec<u32> {
    fn from(ends: Ends) -> Self {
        match ends {
            Ends::One(end) => vec![end],
            Ends::More(ends) => ends,
        }
    }
}

/// Returns a required dimension.
pub(super) fn size(key: &str, value: Option<usize>) -> Result<usize, String> {
    match value {
        None => Err(format!("no `{key}`")),
        Some(0) => Err(format!("`{key}` is 0; expected at least 1")),
        Some(value) if value > MAX_SIZE => {
            Err(format!("`{key}` is {value}; expected at most {MAX_SIZE}"))
        }
        Some(value) => Ok(value),
    }
}

impl Raw {
    /// Refuses options that change the computation and are not supported.
    pub(super) fn refuse_unknown_options(&self) -> Result<(), String> {
        if self.quantization_config.is_some() {
            return Err("`quantization_config`: quantised weights are not supported; expected \
                        weights in F32, F16 or BF16"
                .into());
        }
        match self.hidden_act.as_deref() {
            None | Some("silu") => {}
            Some(other) => return Err(format!("`hidden_act` is {other:?}; expected \"silu\"")),
        }
        let parts = [&self.rope_parameters, &self.rope_scaling];
        let parts = parts.into_iter().flatten().filter_map(|rope| rope.partial_rotary_factor);
        match self.partial_rotary_factor.into_iter().chain(parts).find(|&part| part != 1.0) {
            Some(part) => Err(format!("`partial_rotary_factor` is {part}; expected 1")),
            None => Ok(()),
        }
    }

    /// Numbers of the layers without experts, of a model with experts.
    pub(super) fn layers_without_experts(&self, layers: usize) -> Vec<usize> {
        let step = self.decoder_sparse_step.map_or(1, NonZeroUsize::get);
        let without = |layer: &usize| {
            self.mlp_only_layers.contains(layer) || !(layer + 1).is_multiple_of(step)
        };
        (0..layers).filter(without).collect()
    }

    pub(super) fn norm_epsilon(&self) -> Result<f64, String> {
        let epsilon = self.rms_norm_eps.unwrap_or(1e-6);
        let fine = epsilon.is_finite() && epsilon > 0.0;
        fine.then_some(epsilon)
            .ok_or_else(|| format!("`rms_norm_eps` is {epsilon}; expected a positive number"))
    }

    pub(super) fn rope_theta(&self) -> Result<f32, String> {
        let parameters = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
        positive("rope_theta", parameters.or(self.rope_theta).or(Some(10000.0)))
    }

    pub(super) fn rope_scaling(&self) -> Result<Scaling, String> {
        let Some(rope) = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()) else {
            return Ok(Scaling::None);
        };
        match rope.rope_type.as_deref() {
            Some("default") => Ok(Scaling::None),
            None if rope.factor.is_none() => Ok(Scaling::None),
            None => Err("no `rope_type` of the rotary embeddings, but a `factor`".into()),
            Some("linear") => Ok(Scaling::Linear { factor: positive("factor", rope.factor)? }),
            Some("llama3") => rope.llama3(),
            Some("yarn") => rope.yarn(),
            Some(other) => Err(format!(
                "the rope type {other:?} is not supported; expected one of default, linear, \
                 llama3, yarn"
            )),
        }
    }

    pub(super) fn query_scaling(&self) -> Result<Option<Sharpening>, String> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let Some((rope, beta)) = rope.and_then(|rope| Some((rope, rope.llama_4_scaling_beta?)))
        else {
            return Ok(None);
        };
        let beta = positive("llama_4_scaling_beta", Some(beta))?;
        Ok(Some(Sharpening { beta, original: rope.original()? }))
    }
}

impl Rotary {
    /// Context length of the original training.
    fn original(&self) -> Result<f32, String> {
        positive("original_max_position_embeddings", self.original_max_position_embeddings)
    }

    fn yarn(&self) -> Result<Scaling, String> {
        if self.truncate == Some(false) {
            return Err("`truncate` of the rotary embeddings is false; expected true".into());
        }
        let factor = positive("factor", self.factor)?;
        let scales = self.mscale.zip(self.mscale_all_dim);
        let length = self.attention_factor.unwrap_or_else(|| yarn_length(factor, scales));
        Ok(Scaling::Yarn {
            factor,
            fast: positive("beta_fast", self.beta_fast.or(Some(32.0)))?,
            slow: positive("beta_slow", self.beta_slow.or(Some(1.0)))?,
            original: self.original()?,
            length: positive("attention_factor", Some(length))?,
        })
    }

    fn llama3(&self) -> Result<Scaling, String> {
        let scaling = Scaling::Llama3 {
            factor: positive("factor", self.factor)?,
            low: positive("low_freq_factor", self.low_freq_factor)?,
            high: positive("high_freq_factor", self.high_freq_factor)?,
            original: self.original()?,
        };
        match scaling {
            Scaling::Llama3 { low, high, .. } if low >= high => Err(format!(
                "`low_freq_factor` is {low}; expected less than `high_freq_factor` = {high}"
            )),
            scaling => Ok(scaling),
        }
    }
}

/// Returns a required positive number of the rotary embeddings.
fn positive(key: &str, value: Option<f32>) -> Result<f32, String> {
    match value {
        None => Err(format!("no `{key}` of the rotary embeddings")),
        Some(value) if value.is_finite() && value > 0.0 => Ok(value),
        Some(value) => Err(format!("`{key}` is {value}; expected a positive number")),
    }
}
