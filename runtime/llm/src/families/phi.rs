//! Phi-3 and Phi-4: fused projections, and rotary embeddings of some elements, with longrope.

use super::WINDOW;
use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, LLAMA_LIKE};

pub(super) const PHI3: Family = Family {
    name: "Phi3",
    hugging_face: &["Phi3ForCausalLM"],
    gguf: &["phi3"],
    gguf_parts: &[("ffn_gate_up", "ffn_up")],
    keys: &[WINDOW],
    rotated: Some(1.0),
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.slide_everywhere(keys)
}
