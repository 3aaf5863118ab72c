//! Llama, and models whose layers have its structure: Mistral, and Mixtral with experts.

use super::{EXPERTS, WINDOW};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config};
use crate::family::{Family, LLAMA_LIKE, Multimodal};

pub(super) const LLAMA: Family = Family {
    name: "Llama",
    hugging_face: &["LlamaForCausalLM"],
    gguf: &["llama"],
    keys: &[WINDOW, EXPERTS[0], EXPERTS[1]],
    reordered: true,
    ..LLAMA_LIKE
};

pub(super) const MISTRAL: Family = Family {
    name: "Mistral",
    hugging_face: &["MistralForCausalLM", "Ministral3ForCausalLM"],
    multimodal: Some(Multimodal {
        name: "Mistral3ForConditionalGeneration",
        text_types: &["mistral", "ministral3"],
        defaults: &[],
    }),
    gguf: &["mistral3"],
    may_lack_kv_heads: false,
    ..LLAMA
};

/// In GGUF, Mixtral is a `llama` with experts.
pub(super) const MIXTRAL: Family = Family {
    name: "Mixtral",
    hugging_face: &["MixtralForCausalLM"],
    multimodal: None,
    gguf: &[],
    parts: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
    ],
    theta: 1e6,
    ..MISTRAL
};

/// In GGUF, Mistral and Mixtral have the name of Llama.
pub(super) fn describe_llama(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.biases = biases(keys)?;
    if keys.is_gguf() { describe_mistral(keys, config) } else { Ok(()) }
}

/// Every layer slides if there is a window, and has experts if there are any. Queries may grow with
/// their position.
pub(super) fn describe_mistral(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.query_scaling = keys.sharpening()?;
    for form in &mut config.layer_forms {
        form.scales_queries = config.query_scaling.is_some();
    }
    config.slide_everywhere(keys)?;
    if keys.whole("num_experts")?.unwrap_or(0) > 0 {
        config.add_experts(keys, "intermediate_size")?;
    }
    Ok(())
}

/// Biases of attention and of the feed-forward network, each all or none.
pub(super) fn biases(keys: &dyn KeySource) -> Result<Biases, String> {
    let attention = keys.is_set("attention_bias")?;
    let feed_forward = keys.is_set("mlp_bias")?;
    Ok(Biases { inputs: attention, output: attention, feed_forward })
}
