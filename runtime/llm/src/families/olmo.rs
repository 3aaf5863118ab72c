//! OLMo 2 and 3: only outputs are normalised, and queries and keys over all heads. In OLMo 3, three
//! of four layers slide, and have no scaled rotary embedding.

use super::{PATTERN, WINDOW, find_sliding};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config, HeadNorm};
use crate::family::{Family, LLAMA_LIKE};

pub(super) const OLMO2: Family = Family {
    name: "Olmo2",
    hugging_face: &["Olmo2ForCausalLM"],
    gguf: &["olmo2"],
    parts: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    keys: &[WINDOW, PATTERN],
    ..LLAMA_LIKE
};

pub(super) const OLMO3: Family = Family {
    name: "Olmo3",
    hugging_face: &["Olmo3ForCausalLM"],
    gguf: &[],
    theta: 500_000.0,
    ..OLMO2
};

pub(super) fn describe_olmo2(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    describe_block(keys, config)?;
    // In GGUF, OLMo 3 has the name of OLMo 2, and a window.
    if keys.is_gguf() && keys.has("sliding_window") { slide(keys, config) } else { Ok(()) }
}

pub(super) fn describe_olmo3(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    describe_block(keys, config)?;
    slide(keys, config)
}

fn describe_block(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.input_norms = false;
    config.block.output_norms = true;
    config.block.head_norm = HeadNorm::AllHeads;
    let attention = keys.is_set("attention_bias")?;
    config.biases = Biases { inputs: attention, output: attention, feed_forward: false };
    Ok(())
}

fn slide(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let slides = find_sliding(keys, config.layers, 4)?;
    config.slide(keys, None, &slides)?;
    let full = &config.ropes[0];
    config.rotate_sliding(keys.sliding_rope(full, full.theta)?, &slides);
    Ok(())
}
