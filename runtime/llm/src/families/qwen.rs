//! Qwen 2 and 3, and Qwen 3 with experts.

use super::{EXPERTS, llama};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config, ExpertWeights, HeadNorm};
use crate::family::{Family, LLAMA_LIKE};

/// Default of `max_window_layers`.
const FULL_LAYERS: u64 = 28;

pub(super) const QWEN2: Family = Family {
    name: "Qwen2",
    hugging_face: &["Qwen2ForCausalLM"],
    gguf: &["qwen2"],
    may_lack_kv_heads: false,
    ..LLAMA_LIKE
};

pub(super) const QWEN3: Family = Family {
    name: "Qwen3",
    hugging_face: &["Qwen3ForCausalLM"],
    gguf: &["qwen3"],
    head_dim: Some(128),
    may_lack_kv_heads: false,
    ..LLAMA_LIKE
};

pub(super) const QWEN3_MOE: Family = Family {
    name: "Qwen3Moe",
    hugging_face: &["Qwen3MoeForCausalLM"],
    gguf: &["qwen3moe"],
    keys: &EXPERTS,
    may_lack_kv_heads: false,
    ..LLAMA_LIKE
};

pub(super) fn describe_qwen2(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.biases.inputs = true;
    slide(keys, config)
}

pub(super) fn describe_qwen3(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    describe_heads(keys, config)?;
    slide(keys, config)
}

/// The window applies to every layer; `layer_types` and `max_window_layers` have no effect.
pub(super) fn describe_qwen3_moe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    describe_heads(keys, config)?;
    if keys.is_set("use_sliding_window")? {
        config.slide_everywhere(keys)?;
    }
    config.add_experts(keys, "moe_intermediate_size")?;
    if let Some(experts) = &mut config.experts {
        // GGUF has no such key; llama.cpp always normalises the weights of experts.
        if !keys.flag("norm_topk_prob")?.unwrap_or(keys.is_gguf()) {
            experts.weights = ExpertWeights::Softmax;
        }
    }
    let without = keys.wholes("mlp_only_layers")?.unwrap_or_default();
    let step = match keys.whole("decoder_sparse_step")? {
        Some(0) => return Err("`decoder_sparse_step` is 0; expected at least 1".into()),
        step => step.unwrap_or(1),
    };
    let has_none = |layer: &usize| {
        let number = *layer as u64;
        without.contains(&number) || !(number + 1).is_multiple_of(step)
    };
    config.without_experts = (0..config.layers).filter(has_none).collect();
    Ok(())
}

fn describe_heads(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.head_norm = HeadNorm::PerHead;
    config.biases = Biases { feed_forward: false, ..llama::biases(keys)? };
    Ok(())
}

/// Lets the layers of `layer_types`, or those from `max_window_layers` on, slide.
fn slide(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let listed = keys.sliding_layers(config.layers)?;
    let first = keys.whole("max_window_layers")?.unwrap_or(FULL_LAYERS);
    if !keys.is_set("use_sliding_window")? || !keys.has("sliding_window") {
        return Ok(());
    }
    let slides =
        listed.unwrap_or_else(|| (0..config.layers).map(|layer| layer as u64 >= first).collect());
    config.slide(keys, None, &slides)
}
