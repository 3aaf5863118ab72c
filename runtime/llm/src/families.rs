//! Families of models. Each file describes the blocks of one family, and the names of its tensors
//! and keys.
//!
//! # Adding a family
//!
//! A family is one file with a `const` of type [`Family`] and a function `describe`, which
//! [`FAMILIES`] lists. The fields of the `const` are those in which the family differs from
//! [`LLAMA_LIKE`](crate::family::LLAMA_LIKE):
//!
//! - `hugging_face` and `gguf`: its names in `architectures` of `config.json` and in
//!   `general.architecture` of GGUF metadata;
//! - `multimodal`: multimodal models with a language model of the family;
//! - `parts`: names of its tensors in Hugging Face checkpoints, where they differ from Llama's;
//! - `keys`: names in GGUF of the keys of `config.json` that `describe` reads.
//!
//! `describe` completes a [`Config`] that has the dimensions and the structure of Llama: norms,
//! windows, soft caps, sinks, factors and biases, as [`Block`](crate::config::Block) and
//! [`LayerForm`](crate::config::LayerForm) express them.
//!
//! Nothing else may name the family, except its tests: a case of `tools/make_llm_golden.py` and of
//! `tools/make_tiny_gguf.py`, its name in `tests/suite/common`, and a row of the table in
//! `docs/guide.md`.

mod ernie;
mod exaone;
mod gemma;
mod glm;
mod gpt_oss;
mod granite;
mod llama;
mod llama4;
mod olmo;
mod phi;
mod qwen;
mod seed;
mod smollm;

use crate::config::Config;
use crate::config::keys::KeySource;
use crate::family::{Family, Multimodal};

/// Family, and the function that completes the configuration of its models.
#[derive(Clone, Copy)]
pub(crate) struct DescribedFamily {
    pub(crate) family: &'static Family,
    describe: fn(&dyn KeySource, &mut Config) -> Result<(), String>,
}

impl DescribedFamily {
    /// Describes a model of the family.
    pub(crate) fn describe(&self, keys: &dyn KeySource) -> Result<Config, String> {
        let mut config = Config::like_llama(self.family, keys)?;
        (self.describe)(keys, &mut config)?;
        Ok(config)
    }
}

/// Key of a window, with its name in GGUF.
const WINDOW: (&str, &str) = ("sliding_window", "attention.sliding_window");

/// Key of the number of layers of which one is full, with its name in GGUF.
const PATTERN: (&str, &str) = ("sliding_window_pattern", "attention.sliding_window_pattern");

/// Keys of experts, with their names in GGUF.
const EXPERTS: [(&str, &str); 3] = [
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
];

/// All families, in the order of messages.
pub(crate) static FAMILIES: [DescribedFamily; 20] = [
    DescribedFamily { family: &llama::LLAMA, describe: llama::describe_llama },
    DescribedFamily { family: &llama4::LLAMA4, describe: llama4::describe },
    DescribedFamily { family: &llama::MISTRAL, describe: llama::describe_mistral },
    DescribedFamily { family: &llama::MIXTRAL, describe: llama::describe_mistral },
    DescribedFamily { family: &qwen::QWEN2, describe: qwen::describe_qwen2 },
    DescribedFamily { family: &qwen::QWEN3, describe: qwen::describe_qwen3 },
    DescribedFamily { family: &qwen::QWEN3_MOE, describe: qwen::describe_qwen3_moe },
    DescribedFamily { family: &gemma::GEMMA2, describe: gemma::describe_gemma2 },
    DescribedFamily { family: &gemma::GEMMA3, describe: gemma::describe_gemma3 },
    DescribedFamily { family: &gpt_oss::GPT_OSS, describe: gpt_oss::describe },
    DescribedFamily { family: &phi::PHI3, describe: phi::describe },
    DescribedFamily { family: &granite::GRANITE, describe: granite::describe },
    DescribedFamily { family: &smollm::SMOLLM3, describe: smollm::describe },
    DescribedFamily { family: &olmo::OLMO2, describe: olmo::describe_olmo2 },
    DescribedFamily { family: &olmo::OLMO3, describe: olmo::describe_olmo3 },
    DescribedFamily { family: &glm::GLM, describe: glm::describe_glm },
    DescribedFamily { family: &glm::GLM4, describe: glm::describe_glm4 },
    DescribedFamily { family: &seed::SEED_OSS, describe: seed::describe },
    DescribedFamily { family: &ernie::ERNIE4_5, describe: ernie::describe },
    DescribedFamily { family: &exaone::EXAONE4, describe: exaone::describe },
];

/// Returns the names of all families in `config.json`.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for Family { hugging_face, multimodal, .. } in FAMILIES.iter().map(|it| it.family) {
        names.extend_from_slice(hugging_face);
        names.extend(multimodal.as_ref().map(|it| it.name));
    }
    names
}

/// Returns the names of all families in GGUF metadata.
pub(crate) fn gguf_names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|it| it.family.gguf).copied().collect()
}

/// Finds a family by its name in `config.json`.
pub(crate) fn find(name: &str) -> Option<DescribedFamily> {
    FAMILIES.into_iter().find(|it| it.family.hugging_face.contains(&name))
}

/// Finds the family of a multimodal model's language model, by the model's name in `config.json`.
pub(crate) fn find_multimodal(name: &str) -> Option<(DescribedFamily, Multimodal)> {
    let mut all = FAMILIES.into_iter().filter_map(|it| Some((it, it.family.multimodal?)));
    all.find(|(_, multimodal)| multimodal.name == name)
}

/// Finds a family by its name in GGUF metadata.
pub(crate) fn find_gguf(name: &str) -> Option<DescribedFamily> {
    FAMILIES.into_iter().find(|it| it.family.gguf.contains(&name))
}

/// Returns for each layer whether it slides: as the file lists it, or all but each n-th one, where
/// the default of n is `period`.
fn find_sliding(keys: &dyn KeySource, layers: usize, period: u64) -> Result<Vec<bool>, String> {
    if let Some(listed) = keys.sliding_layers(layers)? {
        return Ok(listed);
    }
    let period = keys.whole("sliding_window_pattern")?.unwrap_or(period);
    let slides = |layer: usize| period > 0 && !(layer as u64 + 1).is_multiple_of(period);
    Ok((0..layers).map(slides).collect())
}

/// Returns for each layer whether it has a rotary embedding: as the file lists it, or all but each
/// n-th one, where the default of n is 4.
fn find_rotating(keys: &dyn KeySource, layers: usize) -> Result<Vec<bool>, String> {
    // The list has 1 for layers with a rotary embedding, despite its name.
    const LIST: &str = "no_rope_layers";
    let listed = keys.wholes(LIST)?.unwrap_or_default();
    let interval = keys.whole("no_rope_layer_interval")?.unwrap_or(4);
    if !listed.is_empty() && listed.len() != layers {
        let found = listed.len();
        return Err(format!("`{LIST}` has {found} items; expected `num_hidden_layers` = {layers}"));
    }
    if !listed.is_empty() {
        return Ok(listed.iter().map(|&rotates| rotates != 0).collect());
    }
    let rotates = |layer: usize| interval == 0 || !(layer as u64 + 1).is_multiple_of(interval);
    Ok((0..layers).map(rotates).collect())
}
