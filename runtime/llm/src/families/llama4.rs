//! Llama 4 (text): layers with a rotary embedding attend within chunks, and have norms of heads;
//! the others attend to all tokens, with queries that grow with their position. Some layers have
//! experts beside a shared one.

use super::{EXPERTS, find_rotating};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config, ExpertWeights, HeadNorm, LayerWindow};
use crate::family::{ExpertLayout, Family, JoinedColumns, LLAMA_LIKE, Multimodal};
use crate::rope::Sharpening;

/// Key of the length of a chunk, and its default.
const CHUNK: &str = "attention_chunk_size";
const CHUNK_SIZE: usize = 8192;

/// Keys of the growth of queries, and their defaults.
const GROWS: &str = "attn_temperature_tuning";
const RATE: (&str, f64) = ("attn_scale", 0.1);
const LENGTH: (&str, usize) = ("floor_scale", 8192);

/// Number of experts of the published model without norms of heads, which GGUF does not tell.
const WITHOUT_NORMS: usize = 128;

pub(super) const LLAMA4: Family = Family {
    name: "Llama4",
    hugging_face: &["Llama4ForCausalLM"],
    multimodal: Some(Multimodal {
        name: "Llama4ForConditionalGeneration",
        text_types: &["llama4_text"],
        defaults: &[],
    }),
    gguf: &["llama4"],
    parts: &[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_up_exps", "feed_forward.experts.gate_up_proj"),
        ("ffn_down_exps", "feed_forward.experts.down_proj"),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ],
    keys: &[
        EXPERTS[0],
        EXPERTS[1],
        EXPERTS[2],
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
        (CHUNK, "attention.sliding_window"),
        (RATE.0, "attention.temperature_scale"),
        (LENGTH.0, "attention.temperature_length"),
    ],
    experts: ExpertLayout::Joined(JoinedColumns::Halves),
    interleaved_pairs: true,
    theta: 500_000.0,
    head_dim: Some(128),
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let attention = keys.is_set("attention_bias")?;
    config.biases = Biases { inputs: attention, output: attention, feed_forward: false };
    describe_experts(keys, config)?;
    describe_norms(keys, config)?;
    let rotates = find_rotating(keys, config.layers)?;
    let chunked = keys.chunked_layers(config.layers)?.unwrap_or_else(|| rotates.clone());
    let size = if keys.has(CHUNK) { keys.size(CHUNK)? } else { CHUNK_SIZE };
    config.query_scaling = read_growth(keys)?;
    for (layer, form) in config.layer_forms.iter_mut().enumerate() {
        let cut = chunked[layer] && size < config.context;
        form.window = cut.then_some(LayerWindow { size, aligned: true });
        form.rope = rotates[layer].then_some(0);
        form.scales_queries = !rotates[layer] && config.query_scaling.is_some();
    }
    Ok(())
}

/// In `config.json`, `intermediate_size` is that of experts, in GGUF that of layers without
/// experts.
fn describe_experts(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    if keys.is_gguf() {
        config.add_experts(keys, "moe_intermediate_size")?;
    } else {
        config.add_experts(keys, "intermediate_size")?;
        config.intermediate_size = keys.size("intermediate_size_mlp")?;
    }
    if let Some(experts) = &mut config.experts {
        experts.weights = ExpertWeights::InputSigmoid;
        experts.shared = true;
    }
    let listed = keys.wholes("moe_layers")?;
    let step = match keys.whole("interleave_moe_layer_step")? {
        Some(0) => return Err("`interleave_moe_layer_step` is 0; expected at least 1".into()),
        step => step.unwrap_or(1),
    };
    let has_experts = |layer: u64| match &listed {
        Some(listed) => listed.contains(&layer),
        None => (layer + 1).is_multiple_of(step),
    };
    let without = (0..config.layers).filter(|layer| !has_experts(*layer as u64));
    config.without_experts = without.collect();
    Ok(())
}

fn describe_norms(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let experts = config.experts.map_or(0, |experts| experts.count);
    let default = !keys.is_gguf() || experts != WITHOUT_NORMS;
    if keys.flag("use_qk_norm")?.unwrap_or(default) {
        config.block.head_norm = HeadNorm::Unweighted;
    }
    Ok(())
}

/// Reads the growth of queries in layers without a rotary embedding.
fn read_growth(keys: &dyn KeySource) -> Result<Option<Sharpening>, String> {
    // The first published files have a number in place of a truth value.
    let grows = match keys.flag(GROWS) {
        Ok(grows) => grows.unwrap_or(true),
        Err(_) => keys.whole(GROWS)? != Some(0),
    };
    let length = if keys.has(LENGTH.0) { keys.size(LENGTH.0)? } else { LENGTH.1 };
    let beta = keys.positive_or(RATE.0, RATE.1)? as f32;
    Ok(grows.then_some(Sharpening { beta, original: length as f32, first: 1.0 }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::json::JsonKeys;
    use crate::families;
    use crate::rope::Scaling;

    /// Keys of the published model with 16 experts, and further ones.
    fn describe(more: &Value) -> Config {
        let mut keys = json!({
            "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
            "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
            "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
            "max_position_embeddings": 10_485_760, "vocab_size": 202_048, "no_rope_layers": [],
            "attention_chunk_size": 8192, "attn_temperature_tuning": 4, "floor_scale": 8192,
            "attn_scale": 0.1, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "use_qk_norm": true,
            "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        });
        for (key, value) in more.as_object().unwrap() {
            keys[key] = value.clone();
        }
        let keys = JsonKeys::new(keys.as_object().unwrap().clone());
        families::find("Llama4ForCausalLM").unwrap().describe(&keys).unwrap()
    }

    #[test]
    fn every_fourth_layer_of_the_published_model_is_full() {
        let config = describe(&json!({}));
        let chunk = Some(LayerWindow { size: 8192, aligned: true });
        for (layer, form) in config.layer_forms.iter().enumerate() {
            let full = layer % 4 == 3;
            assert_eq!((form.window, form.scales_queries), (chunk.filter(|_| !full), full));
            assert_eq!(form.rope, (!full).then_some(0));
        }
        let growth = Sharpening { beta: 0.1, original: 8192.0, first: 1.0 };
        assert_eq!(config.query_scaling, Some(growth));
        assert!((growth.factor(8190), growth.factor(8191)) == (1.0, 1.0 + 0.1 * 2.0_f32.ln()));
        assert!(matches!(config.ropes[0].scaling, Scaling::Llama3 { .. }));
        assert_eq!(config.block.head_norm, HeadNorm::Unweighted);
        assert!(config.without_experts.is_empty());
        assert_eq!(config.experts.map(|experts| experts.inner), Some(8192));
    }

    /// Keys of the published model with 128 experts.
    #[test]
    fn experts_and_norms_may_be_absent() {
        let config = describe(&json!({
            "use_qk_norm": false, "interleave_moe_layer_step": 2, "attn_temperature_tuning": false,
        }));
        assert_eq!(config.block.head_norm, HeadNorm::None);
        assert_eq!(config.query_scaling, None);
        assert_eq!(config.without_experts, (0..48).step_by(2).collect::<Vec<_>>());
        assert_eq!(config.intermediate_size, 16384);
    }
}
