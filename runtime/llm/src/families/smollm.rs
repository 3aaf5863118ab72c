//! SmolLM3: some layers have no rotary embedding (NoPE), and may slide.

use super::{find_rotating, llama};
use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, LLAMA_LIKE};

pub(super) const SMOLLM3: Family = Family {
    name: "SmolLM3",
    hugging_face: &["SmolLM3ForCausalLM"],
    gguf: &["smollm3"],
    reordered: true,
    theta: 2e6,
    tied: true,
    may_lack_kv_heads: false,
    ..LLAMA_LIKE
};

pub(super) fn describe(keys: &dyn KeySource, config: &mut Config) -> Result<(), String> {
    config.biases = llama::biases(keys)?;
    let layers = config.layers;
    let rotates = find_rotating(keys, layers)?;
    for (form, rotates) in config.layer_forms.iter_mut().zip(&rotates) {
        form.rope = rotates.then_some(0);
    }
    let types = keys.sliding_layers(layers)?;
    if !keys.is_set("use_sliding_window")? || !keys.has("sliding_window") {
        return Ok(());
    }
    let slides = types.unwrap_or_else(|| rotates.iter().map(|rotates| !rotates).collect());
    config.slide(keys, None, &slides)
}
