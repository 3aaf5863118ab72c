//! Configuration of a model, from GGUF metadata.

mod rope;

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use vattention_core::Shape;

use super::value::{shown, typed, whole_number};
use crate::config::keys::KeySource;
use crate::config::{Biases, Config};
use crate::families::{self, DescribedFamily};
use crate::family::{Family, NameTable};
use crate::gguf::tokenizer::ends;

pub(super) use rope::LongRopeFactors;

/// Keys of `config.json` that all families have, with their names in GGUF.
const KEYS: NameTable = &[
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
];

/// Keys that llama.cpp may write for each layer.
const LAYER_KEYS: [&str; 3] =
    ["attention.head_count", "attention.head_count_kv", "feed_forward_length"];

/// Keys that change the computation of the families that have them; others refuse them.
const OPTIONS: [&str; 9] = [
    "expert_count",
    "attention.sliding_window_pattern",
    "attention.scale",
    "rope.freq_base_swa",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

type Metadata = HashMap<String, Value>;

/// Numbers of query heads and KV heads, if the rows of this family's queries and keys are in
/// interleaved rotary order, because llama.cpp rotates neighbouring elements.
pub(super) fn interleaved_heads(metadata: &Metadata) -> Option<(usize, usize)> {
    let keys = MetadataKeys::new(metadata, None).ok()?;
    let keys_of_any: &dyn KeySource = &keys;
    let query_heads = keys_of_any.size("num_attention_heads").ok()?;
    let kv_heads = if keys.has("num_key_value_heads") {
        keys_of_any.size("num_key_value_heads").ok()?
    } else {
        query_heads
    };
    keys.family.reordered.then_some((query_heads, kv_heads))
}

/// Reads the configuration from metadata; `has` returns whether a tensor exists.
pub(super) fn config(
    metadata: &Metadata,
    factors: Option<LongRopeFactors>,
    has: impl Fn(&str) -> bool,
) -> Result<Config, String> {
    let keys = MetadataKeys::new(metadata, factors)?;
    let (_, family) = family(metadata)?;
    let mut config = family.describe(&keys)?;
    config.tied = !has("output.weight");
    config.biases = Biases {
        inputs: ["attn_q", "attn_qkv"].iter().any(|part| has(&format!("blk.0.{part}.bias"))),
        output: has("blk.0.attn_output.bias"),
        feed_forward: has("blk.0.ffn_up.bias"),
    };
    config.ends = ends(metadata, config.vocab_size)?;
    Ok(config)
}

/// Finds the family, and the architecture's name, with which its keys begin.
pub(super) fn family(metadata: &Metadata) -> Result<(&str, DescribedFamily), String> {
    const KEY: &str = "general.architecture";
    let known = families::gguf_names().join(", ");
    let Some(value) = metadata.get(KEY) else {
        return Err(format!("no `{KEY}`; expected one of {known}"));
    };
    let found = match value {
        Value::String(name) => families::find_gguf(name).map(|family| (name.as_str(), family)),
        _ => None,
    };
    found.ok_or_else(|| format!("`{KEY}` is {}; expected one of {known}", typed(value)))
}

/// Keys of an architecture, `{architecture}.{key}`.
struct MetadataKeys<'m> {
    prefix: &'m str,
    family: &'static Family,
    metadata: &'m Metadata,
    factors: Option<LongRopeFactors>,
}

impl<'m> MetadataKeys<'m> {
    fn new(metadata: &'m Metadata, factors: Option<LongRopeFactors>) -> Result<Self, String> {
        let (prefix, family) = family(metadata)?;
        Ok(Self { prefix, family: family.family, metadata, factors })
    }

    /// Returns the value of a key that is named as in GGUF, without the architecture.
    fn get(&self, key: &str) -> Option<&'m Value> {
        self.metadata.get(&self.full_name(key))
    }

    fn full_name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// Returns the name in GGUF, without the architecture, of a key of `config.json`.
    fn translate(&self, key: &str) -> Option<&'static str> {
        let tables = KEYS.iter().chain(self.family.keys);
        tables.into_iter().find(|(name, _)| *name == key).map(|(_, gguf)| *gguf)
    }

    fn find(&self, key: &str) -> Option<&'m Value> {
        self.get(self.translate(key)?)
    }

    /// Reads a whole number of any width.
    fn whole_at(&self, key: &str) -> Result<Option<u64>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if let (Value::Array(values), true) = (value, LAYER_KEYS.contains(&key)) {
            return self.size_of_layers(key, values).map(Some);
        }
        let name = self.full_name(key);
        natural_number(value)
            .map(Some)
            .ok_or_else(|| format!("`{name}` is {}; expected a whole number", typed(value)))
    }

    /// Reads a dimension that all layers share, and that is stored for each layer.
    fn size_of_layers(&self, key: &str, values: &[Value]) -> Result<u64, String> {
        let keys: &dyn KeySource = self;
        let (name, layers) = (self.full_name(key), keys.size("num_hidden_layers")?);
        if values.len() != layers {
            let (found, count) = (values.len(), self.name("num_hidden_layers"));
            return Err(format!("`{name}` has {found} items; expected `{count}` = {layers}"));
        }
        let mut sizes = Vec::new();
        for (layer, value) in values.iter().enumerate() {
            let name = format!("{name}[{layer}]");
            match natural_number(value) {
                Some(0) => return Err(format!("`{name}` is 0; expected at least 1")),
                Some(size) => sizes.push(size),
                None => {
                    return Err(format!("`{name}` is {}; expected a whole number", typed(value)));
                }
            }
        }
        match sizes.iter().position(|size| *size != sizes[0]) {
            None => Ok(sizes[0]),
            Some(layer) => Err(format!(
                "`{name}` is {} at layer 0 and {} at layer {layer}, which is not supported; \
                 expected one size for all layers",
                sizes[0], sizes[layer]
            )),
        }
    }

    /// Reads a number.
    fn number_at(&self, key: &str) -> Result<Option<f32>, String> {
        let name = self.full_name(key);
        match self.get(key) {
            None => Ok(None),
            Some(&Value::F32(number)) => Ok(Some(number)),
            Some(value) => {
                Err(format!("`{name}` is {}; expected a positive f32 number", typed(value)))
            }
        }
    }

    fn positive_at(&self, key: &str) -> Result<Option<f32>, String> {
        match self.number_at(key)? {
            Some(number) if !(number.is_finite() && number > 0.0) => {
                let name = self.full_name(key);
                let shown = shown(&Value::F32(number));
                Err(format!("`{name}` is {shown}; expected a positive number"))
            }
            number => Ok(number),
        }
    }

    fn required_at(&self, key: &str) -> Result<f32, String> {
        self.positive_at(key)?.ok_or_else(|| format!("no `{}`", self.full_name(key)))
    }

    fn refuse(&self, key: &str, expected: &str) -> Result<(), String> {
        let found = self.get(key).map(typed).unwrap_or_default();
        let name = self.full_name(key);
        Err(format!("`{name}` is {found}, which is not supported; expected {expected}"))
    }
}

impl KeySource for MetadataKeys<'_> {
    fn is_gguf(&self) -> bool {
        true
    }

    fn name(&self, key: &str) -> String {
        self.full_name(self.translate(key).unwrap_or(key))
    }

    fn has(&self, key: &str) -> bool {
        // Converters write a window of 0 for a model without one.
        let no_window = key == "sliding_window" && self.whole(key) == Ok(Some(0));
        self.find(key).is_some() && !no_window
    }

    /// Reads a whole number; the list of tokens takes precedence over `vocab_size`.
    fn whole(&self, key: &str) -> Result<Option<u64>, String> {
        if key == "vocab_size" {
            return match self.metadata.get("tokenizer.ggml.tokens") {
                Some(Value::Array(tokens)) if !tokens.is_empty() => Ok(Some(tokens.len() as u64)),
                _ => self.whole_at(key),
            };
        }
        let Some(key) = self.translate(key) else { return Ok(None) };
        self.whole_at(key)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let Some(key) = self.translate(key) else { return Ok(None) };
        Ok(self.number_at(key)?.map(f64::from))
    }

    /// Returns nothing: the tensors and the family tell what truth values of `config.json` do.
    fn flag(&self, _: &str) -> Result<Option<bool>, String> {
        Ok(None)
    }

    /// Returns nothing, for lack of such keys.
    fn wholes(&self, _: &str) -> Result<Option<Vec<u64>>, String> {
        Ok(None)
    }

    fn sliding_layers(&self, layers: usize) -> Result<Option<Vec<bool>>, String> {
        let Some(Value::Array(values)) = self.find("sliding_window_pattern") else {
            return Ok(None);
        };
        let slides = |value: &Value| match value {
            Value::Bool(slides) => Some(*slides),
            value => natural_number(value).map(|number| number != 0),
        };
        let slides: Option<Vec<bool>> = values.iter().map(slides).collect();
        match slides {
            Some(slides) if slides.len() == layers => Ok(Some(slides)),
            _ => Err(format!(
                "`{}` is {}; expected {layers} truth values, as many as layers",
                self.name("sliding_window_pattern"),
                shown(&Value::Array(values.clone()))
            )),
        }
    }

    /// Returns nothing, for lack of such a key.
    fn chunked_layers(&self, _: usize) -> Result<Option<Vec<bool>>, String> {
        Ok(None)
    }

    fn may_lack_kv_heads(&self, _: &Family) -> bool {
        true
    }

    fn refuse_unsupported(&self, family: &Family, shape: &Shape) -> Result<(), String> {
        for key in OPTIONS {
            let known = family.keys.iter().any(|(_, gguf)| *gguf == key);
            if self.get(key).is_some() && self.whole_at(key) != Ok(Some(0)) && !known {
                return self.refuse(key, "none");
            }
        }
        for key in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
            let key = &format!("rope.scaling.{key}");
            let factor = self.positive_at(key);
            if self.factors.is_none() && !matches!(factor, Ok(None | Some(1.0))) {
                return self.refuse(key, "1");
            }
        }
        self.required_at("attention.layer_norm_rms_epsilon")?;
        if let Some(found) = self.whole_at("attention.value_length")?
            && found != shape.head_dim as u64
        {
            let (name, dim) = (self.full_name("attention.value_length"), shape.head_dim);
            return Err(format!("`{name}` is {found}; expected the head's {dim}"));
        }
        match self.get("attention.causal") {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(_) => self.refuse("attention.causal", "true"),
        }
    }
}

/// Returns the value if it is a non-negative integer.
fn natural_number(value: &Value) -> Option<u64> {
    whole_number(value).and_then(|number| u64::try_from(number).ok())
}
