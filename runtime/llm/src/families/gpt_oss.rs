//! gpt-oss: experts with biases and a clamped SwiGLU, sinks, and every other layer slides.

use super::{EXPERTS, PATTERN, WINDOW, find_sliding};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config, GateActivation};
use crate::family::{ExpertLayout, Family, JoinedColumns, LLAMA_LIKE};
use crate::rope::Scaling;

pub(super) const GPT_OSS: Family = Family {
    name: "GptOss",
    hugging_face: &["GptOssForCausalLM"],
    gguf: &["gpt-oss"],
    parts: &[
        ("ffn_gate_inp", "mlp.router"),
        ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
        ("ffn_down_exps", "mlp.experts.down_proj"),
    ],
    gguf_parts: &[("ffn_norm", "post_attention_norm")],
    keys: &[WINDOW, PATTERN, EXPERTS[0], EXPERTS[1], EXPERTS[2]],
    experts: ExpertLayout::Joined(JoinedColumns::Alternating),
    theta: 150_000.0,
    head_dim: Some(64),
    may_lack_kv_heads: false,
    mxfp4: true,
    activation: GateActivation::ClampedSwiglu { alpha: 1.702, limit: 7.0 },
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.sinks = true;
    config.block.activation = GateActivation::ClampedSwiglu {
        alpha: keys.positive_or("swiglu_alpha", 1.702)? as f32,
        limit: keys.positive_or("swiglu_limit", 7.0)? as f32,
    };
    let biased = keys.flag("attention_bias")?.unwrap_or(true);
    config.biases = Biases { inputs: biased, output: biased, feed_forward: false };
    let inner = if keys.is_gguf() { "moe_intermediate_size" } else { "intermediate_size" };
    config.add_experts(keys, inner)?;
    if let Some(experts) = &mut config.experts {
        experts.biased = true;
    }
    // GGUF has no such key.
    if let (true, Scaling::Yarn { truncates, .. }) = (keys.is_gguf(), &mut config.ropes[0].scaling)
    {
        *truncates = false;
    }
    config.slide(keys, None, &find_sliding(keys, config.layers, 2)?)
}
