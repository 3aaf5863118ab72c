//! ERNIE 4.5 without experts: the structure of Llama, with pairs of neighbours that are rotated.

use crate::config::keys::KeySource;
use crate::config::{Biases, Config};
use crate::family::{Family, LLAMA_LIKE};

pub(super) const ERNIE4_5: Family = Family {
    name: "Ernie4_5",
    hugging_face: &["Ernie4_5ForCausalLM"],
    gguf: &["ernie4_5"],
    interleaved_pairs: true,
    theta: 500_000.0,
    tied: true,
    head_dim: Some(128),
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    let biased = keys.is_set("use_bias")?;
    config.biases = Biases { inputs: biased, output: biased, feed_forward: biased };
    Ok(())
}
