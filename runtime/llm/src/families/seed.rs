//! Seed-OSS: the structure of Llama, with biases of queries, keys and values.

use crate::config::keys::KeySource;
use crate::config::{Biases, Config};
use crate::family::{Family, LLAMA_LIKE};

pub(super) const SEED_OSS: Family = Family {
    name: "SeedOss",
    hugging_face: &["SeedOssForCausalLM"],
    gguf: &["seed_oss"],
    gguf_parts: &[("ffn_norm", "post_attention_norm")],
    head_dim: Some(128),
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.biases = Biases {
        inputs: keys.flag("attention_bias")?.unwrap_or(true),
        output: keys.is_set("attention_out_bias")?,
        feed_forward: keys.is_set("mlp_bias")?,
    };
    Ok(())
}
