//! SmolLM3: some layers have no rotary embedding (NoPE), and may slide.

use super::llama;
use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, LLAMA_LIKE};

/// Key of a list that has 1 for layers with a rotary embedding, despite its name.
const LIST: &str = "no_rope_layers";

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
    let (layers, listed) = (config.layers, keys.wholes(LIST)?);
    if let Some(found) = listed.as_ref().map(Vec::len).filter(|found| *found != layers) {
        return Err(format!("`{LIST}` has {found} items; expected `num_hidden_layers` = {layers}"));
    }
    let interval = keys.whole("no_rope_layer_interval")?.unwrap_or(4);
    let rotates = |layer: usize| match &listed {
        Some(listed) => listed[layer] != 0,
        None => interval == 0 || !(layer as u64 + 1).is_multiple_of(interval),
    };
    for (layer, form) in config.layer_forms.iter_mut().enumerate() {
        form.rope = rotates(layer).then_some(0);
    }
    let types = keys.sliding_layers(layers)?;
    if !keys.is_set("use_sliding_window")? || !keys.has("sliding_window") {
        return Ok(());
    }
    let slides = types.unwrap_or_else(|| (0..layers).map(|layer| !rotates(layer)).collect());
    config.slide(keys, None, &slides)
}
