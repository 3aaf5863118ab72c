//! GLM-4: half of a head's elements are rotated, as pairs of neighbours; gate and up are fused, and
//! queries, keys and values have biases. GLM-4-0414 (`Glm4ForCausalLM`) also normalises outputs.

use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, LLAMA_LIKE};

pub(super) const GLM: Family = Family {
    name: "Glm",
    hugging_face: &["GlmForCausalLM"],
    gguf: &["chatglm"],
    gguf_parts: &[("ffn_gate_up", "ffn_up")],
    interleaved_pairs: true,
    rotated: Some(0.5),
    head_dim: Some(128),
    may_lack_kv_heads: false,
    ..LLAMA_LIKE
};

pub(super) const GLM4: Family = Family {
    name: "Glm4",
    hugging_face: &["Glm4ForCausalLM"],
    gguf: &["glm4"],
    parts: &[
        ("post_attention_norm", "post_self_attn_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
    ],
    ..GLM
};

pub(super) fn describe_glm(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.biases.inputs = keys.flag("attention_bias")?.unwrap_or(true);
    Ok(())
}

pub(super) fn describe_glm4(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.output_norms = true;
    describe_glm(keys, config)
}
