//! Gemma 2 and 3 (text): norms around attention and feed-forward network, GELU, scaled embeddings,
//! and layers that slide; Gemma 2 has soft caps, Gemma 3 norms of heads.

use super::{PATTERN, WINDOW, find_sliding};
use crate::config::keys::KeySource;
use crate::config::{Config, GateActivation, HeadNorm};
use crate::family::{Family, LLAMA_LIKE, Multimodal, NameTable};

/// Names of a layer's norms in Hugging Face checkpoints.
const NORMS: NameTable = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const KEYS: NameTable = &[
    WINDOW,
    PATTERN,
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention_scale", "attention.scale"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
];

pub(super) const GEMMA2: Family = Family {
    name: "Gemma2",
    hugging_face: &["Gemma2ForCausalLM"],
    gguf: &["gemma2"],
    parts: NORMS,
    keys: KEYS,
    tied: true,
    head_dim: Some(256),
    may_lack_kv_heads: false,
    centred_norms: true,
    activation: GateActivation::GeluTanh,
    ..LLAMA_LIKE
};

pub(super) const GEMMA3: Family = Family {
    name: "Gemma3",
    hugging_face: &["Gemma3ForCausalLM"],
    multimodal: Some(Multimodal {
        name: "Gemma3ForConditionalGeneration",
        text_types: &["gemma3_text"],
        defaults: &[
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("max_position_embeddings", 131_072),
        ],
    }),
    gguf: &["gemma3"],
    theta: 1e6,
    ..GEMMA2
};

pub(super) fn describe_gemma2(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let slides = find_sliding(keys, config.layers, 2)?;
    describe(keys, config, &slides, 46)
}

pub(super) fn describe_gemma3(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.head_norm = HeadNorm::PerHead;
    let slides = find_sliding(keys, config.layers, 6)?;
    describe(keys, config, &slides, 62)?;
    let local = keys.sliding_rope(&config.ropes[0], 10000.0)?;
    config.rotate_sliding(local, &slides);
    Ok(())
}

/// Describes what both have in common. `largest` is the number of layers of the model of 27 billion
/// weights, whose softmax scale GGUF does not store.
fn describe(
    keys: &dyn KeySource,
    config: &mut Config,
    slides: &[bool],
    largest: usize,
) -> Result<(), String> {
    let heads = config.shape;
    let default = if config.layers == largest {
        config.hidden_size as f64 / heads.query_heads as f64
    } else {
        heads.head_dim as f64
    };
    let scale = keys.positive_or("query_pre_attn_scalar", default)?.sqrt().recip();
    let block = &mut config.block;
    block.scale = Some(keys.positive_or("attention_scale", scale)? as f32);
    block.output_norms = true;
    block.embedding_scale = (config.hidden_size as f64).sqrt() as f32;
    block.attention_cap = keys.cap("attn_logit_softcapping")?;
    block.logits_cap = keys.cap("final_logit_softcapping")?;
    if keys.is_set("use_bidirectional_attention")? {
        return Err("`use_bidirectional_attention` is true; expected false".into());
    }
    config.biases = super::llama::biases(keys)?;
    config.biases.feed_forward = false;
    let default = keys.is_gguf().then_some(4096);
    config.slide(keys, default, slides)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::json::JsonKeys;
    use crate::families;

    /// GGUF files lack the key of the scale, which is that of llama.cpp then.
    #[test]
    fn the_largest_models_have_another_softmax_scale() {
        let scale = |family: &str, layers: usize| {
            let keys = json!({
                "hidden_size": 4608, "intermediate_size": 64, "num_hidden_layers": layers,
                "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
                "max_position_embeddings": 8192, "vocab_size": 8, "sliding_window": 4096,
            });
            let keys = JsonKeys::new(keys.as_object().unwrap().clone());
            families::find(family).unwrap().describe(&keys).unwrap().block.scale.unwrap()
        };
        assert_eq!(scale("Gemma2ForCausalLM", 46), 1.0 / 12.0);
        assert_eq!(scale("Gemma2ForCausalLM", 42), 1.0 / 128.0_f32.sqrt());
        assert_eq!(scale("Gemma3ForCausalLM", 62), 1.0 / 12.0);
    }
}
