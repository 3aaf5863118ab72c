//! EXAONE 4: only outputs are normalised, and each head. If some layers slide, the full ones have
//! no rotary embedding.

use super::{PATTERN, WINDOW, find_sliding};
use crate::config::keys::KeySource;
use crate::config::{Config, HeadNorm};
use crate::family::{Family, LLAMA_LIKE};

pub(super) const EXAONE4: Family = Family {
    name: "Exaone4",
    hugging_face: &["Exaone4ForCausalLM"],
    gguf: &["exaone4"],
    parts: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    keys: &[WINDOW, PATTERN],
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.block.input_norms = false;
    config.block.output_norms = true;
    config.block.head_norm = HeadNorm::PerHead;
    if !keys.has("sliding_window") {
        return Ok(());
    }
    let slides = find_sliding(keys, config.layers, 4)?;
    for (form, slides) in config.layer_forms.iter_mut().zip(&slides) {
        form.rope = slides.then_some(0);
    }
    config.slide(keys, None, &slides)
}
