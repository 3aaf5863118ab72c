//! Granite 3: the structure of Llama, with factors of embeddings, residuals, attention and logits.

use super::llama;
use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, LLAMA_LIKE};

pub(super) const GRANITE: Family = Family {
    name: "Granite",
    hugging_face: &["GraniteForCausalLM"],
    gguf: &["granite"],
    keys: &[
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("attention_multiplier", "attention.scale"),
        ("logits_scaling", "logit_scale"),
    ],
    reordered: true,
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let block = &mut config.block;
    block.embedding_scale = keys.factor("embedding_multiplier")?;
    block.residual_scale = keys.factor("residual_multiplier")?;
    block.logits_scale = keys.factor("logits_scaling")?.recip();
    let scale = keys.positive("attention_multiplier")?;
    // Without the key, transformers does not scale, and llama.cpp scales as usual.
    block.scale = scale.or((!keys.is_gguf()).then_some(1.0)).map(|scale| scale as f32);
    config.biases = llama::biases(keys)?;
    Ok(())
}
