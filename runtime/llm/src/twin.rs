//! Hint for a model of an unknown architecture that equals a known one but for its name.

use std::path::Path;

use crate::config::json::JsonKeys;
use crate::families::{DescribedFamily, FAMILIES};
use crate::layer::DecoderLayer;
use crate::weights::CheckpointTensors;

/// Keys of `config.json` that do not change the computation.
const HARMLESS: [&str; 22] = [
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "hidden_dropout",
    "initializer_range",
    "max_window_layers",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "resid_pdrop",
    "residual_dropout",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
];

/// Returns advice for a folder whose architecture is unknown, if a family reads all its keys and
/// all tensors of its first layer. Twins are not read as that family without the user's decision,
/// because code outside of the checkpoint may differ.
pub(crate) fn find_twin(dir: &Path, keys: &JsonKeys) -> Option<String> {
    let twin = FAMILIES.into_iter().find(|family| is_twin(family, dir, keys))?;
    let name = twin.family.hugging_face.first()?;
    Some(format!(
        "; its keys and the tensors of its first layer are those of {name}: write this name into \
         `architectures` if the model is one"
    ))
}

fn is_twin(family: &DescribedFamily, dir: &Path, keys: &JsonKeys) -> bool {
    let keys = keys.renew();
    let Ok(config) = family.describe(&keys) else { return false };
    if keys.unread().iter().any(|key| !HARMLESS.contains(key)) {
        return false;
    }
    let Ok(mut weights) = CheckpointTensors::open(dir) else { return false };
    weights.set_family(family.family);
    DecoderLayer::open(&mut weights, 0, &config).is_ok() && weights.is_layer_taken(0)
}
