//! Configuration of a model, from GGUF metadata.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use vattention_core::Shape;

use super::value::{shown, typed, whole_number};
use crate::config::{Architecture, Biases, Config, Experts, MOST_LAYERS};
use crate::gguf::tokenizer::ends;
use crate::rope::{Scaling, Sharpening, yarn_length};

/// Architectures by their names in llama.cpp.
const ARCHITECTURES: [(&str, Architecture); 5] = [
    ("llama", Architecture::Llama),
    ("mistral3", Architecture::Mistral),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
];

/// Architecture that has experts.
const EXPERTS: &str = "qwen3moe";

/// Largest dimension; the product of two fits into `usize`.
const MAX_SIZE: u64 = i32::MAX as u64;

/// Largest head dimension; selectors may store its square.
const WIDEST: usize = 1 << 14;

type Metadata = HashMap<String, Value>;

/// Numbers of query heads and KV heads, if llama.cpp rotates neighbouring elements of this
/// architecture, so that the rows are in interleaved rotary order.
pub(super) fn interleaved_heads(metadata: &Metadata) -> Option<(usize, usize)> {
    let (_, architecture) = architecture(metadata).ok()?;
    let neighbours = matches!(architecture, Architecture::Llama | Architecture::Mistral);
    neighbours.then(|| Some((query_heads(metadata).ok()?, kv_heads(metadata).ok()?))).flatten()
}

fn query_heads(metadata: &Metadata) -> Result<usize, String> {
    ConfigKeys::new(metadata)?.size_of_layers("attention.head_count")
}

fn kv_heads(metadata: &Metadata) -> Result<usize, String> {
    let keys = ConfigKeys::new(metadata)?;
    if keys.has("attention.head_count_kv") {
        keys.size_of_layers("attention.head_count_kv")
    } else {
        keys.size_of_layers("attention.head_count")
    }
}

/// Reads the configuration from metadata; `has` returns whether a tensor of a Hugging Face name
/// exists.
pub(super) fn config(metadata: &Metadata, has: impl Fn(&str) -> bool) -> Result<Config, String> {
    let (_, architecture) = architecture(metadata)?;
    let keys = ConfigKeys::new(metadata)?;
    let hidden_size = keys.size("embedding_length")?;
    let layers = keys.size("block_count")?;
    if layers > MOST_LAYERS {
        let name = keys.name("block_count");
        return Err(format!("`{name}` is {layers}; expected at most {MOST_LAYERS}"));
    }
    keys.refuse_unknown_options()?;
    let shape = shape(&keys, hidden_size, (query_heads(metadata)?, kv_heads(metadata)?))?;
    let (context, context_key) = context(&keys, architecture)?;
    let vocab_size = vocab_size(&keys)?;
    let tied = !has("lm_head.weight");
    Ok(Config {
        architecture,
        hidden_size,
        intermediate_size: keys.size_of_layers("feed_forward_length")?,
        experts: experts(&keys, architecture)?,
        without_experts: Vec::new(),
        layers,
        shape,
        vocab_size,
        context,
        context_key,
        rope_theta: keys.positive_or("rope.freq_base", 10000.0)?,
        rope_scaling: keys.scaling()?,
        query_scaling: keys.sharpening()?,
        norm_epsilon: f64::from(keys.positive("attention.layer_norm_rms_epsilon")?),
        tied,
        biases: Biases {
            inputs: has("model.layers.0.self_attn.q_proj.bias"),
            output: has("model.layers.0.self_attn.o_proj.bias"),
            feed_forward: has("model.layers.0.mlp.gate_proj.bias"),
        },
        ends: ends(metadata, vocab_size)?,
    })
}

/// Dimensions of the experts. llama.cpp has no key for the normalisation of their weights, which it
/// always applies.
fn experts(keys: &ConfigKeys<'_>, architecture: Architecture) -> Result<Option<Experts>, String> {
    if architecture != Architecture::Qwen3Moe {
        return Ok(None);
    }
    let count = keys.size("expert_count")?;
    let per_token = keys.size("expert_used_count")?;
    if per_token > count {
        let (used, all) = (keys.name("expert_used_count"), keys.name("expert_count"));
        return Err(format!("`{used}` is {per_token}; expected at most `{all}` = {count}"));
    }
    let inner = keys.size("expert_feed_forward_length")?;
    Ok(Some(Experts { count, per_token, inner, normalises: true }))
}

fn architecture(metadata: &Metadata) -> Result<(&str, Architecture), String> {
    const KEY: &str = "general.architecture";
    let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
    let Some(value) = metadata.get(KEY) else {
        return Err(format!("no `{KEY}`; expected one of {known}"));
    };
    let found =
        ARCHITECTURES.into_iter().find(|(name, _)| matches!(value, Value::String(s) if s == name));
    found.ok_or_else(|| format!("`{KEY}` is {}; expected one of {known}", typed(value)))
}

fn shape(
    keys: &ConfigKeys<'_>,
    hidden_size: usize,
    (query_heads, kv_heads): (usize, usize),
) -> Result<Shape, String> {
    let head_dim = if keys.has("attention.key_length") {
        keys.size("attention.key_length")?
    } else if hidden_size.is_multiple_of(query_heads) {
        hidden_size / query_heads
    } else {
        return Err(format!(
            "`{}` is {hidden_size}; expected a multiple of `{}` = {query_heads}, or `{}`",
            keys.name("embedding_length"),
            keys.name("attention.head_count"),
            keys.name("attention.key_length"),
        ));
    };
    if !head_dim.is_multiple_of(2) || head_dim > WIDEST {
        return Err(format!(
            "heads have {head_dim} elements; expected an even number of them, at most {WIDEST}"
        ));
    }
    for key in ["attention.value_length", "rope.dimension_count"] {
        if keys.has(key) && keys.size(key)? != head_dim {
            let (name, found) = (keys.name(key), keys.size(key)?);
            return Err(format!("`{name}` is {found}; expected the head's {head_dim}"));
        }
    }
    let shape = Shape { query_heads, kv_heads, head_dim, value_dim: head_dim };
    shape.check().map_err(|error| error.to_string())?;
    Ok(shape)
}

/// Largest number of tokens of a sequence, and the key that limits it. Within its sliding window a
/// model attends to all tokens.
fn context(keys: &ConfigKeys<'_>, architecture: Architecture) -> Result<(usize, String), String> {
    let positions = keys.size("context_length")?;
    let slides = architecture != Architecture::Qwen2 && keys.has("attention.sliding_window");
    match slides.then(|| keys.number("attention.sliding_window")).transpose()? {
        Some(window) if window > 0 && (window as usize) < positions => {
            Ok((window as usize, keys.name("attention.sliding_window")))
        }
        _ => Ok((positions, keys.name("context_length"))),
    }
}

/// Number of tokens in the vocabulary; the list of tokens takes precedence over `vocab_size`.
fn vocab_size(keys: &ConfigKeys<'_>) -> Result<usize, String> {
    match keys.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(tokens)) if !tokens.is_empty() => Ok(tokens.len()),
        _ => keys.size("vocab_size"),
    }
}

/// Keys of an architecture, `{architecture}.{key}`.
struct ConfigKeys<'m> {
    prefix: &'m str,
    metadata: &'m Metadata,
}

impl<'m> ConfigKeys<'m> {
    fn new(metadata: &'m Metadata) -> Result<Self, String> {
        Ok(Self { prefix: architecture(metadata)?.0, metadata })
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn get(&self, key: &str) -> Option<&'m Value> {
        self.metadata.get(&self.name(key))
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Reads a whole number of any width.
    fn number(&self, key: &str) -> Result<u64, String> {
        let name = self.name(key);
        let Some(value) = self.get(key) else { return Err(format!("no `{name}`")) };
        natural_number(value)
            .ok_or_else(|| format!("`{name}` is {}; expected a whole number", typed(value)))
    }

    /// Reads a dimension.
    fn size(&self, key: &str) -> Result<usize, String> {
        check_size(&self.name(key), self.number(key)?)
    }

    /// Reads a dimension that all layers share, stored once or for each layer.
    fn size_of_layers(&self, key: &str) -> Result<usize, String> {
        let Some(Value::Array(values)) = self.get(key) else { return self.size(key) };
        let (name, layers) = (self.name(key), self.size("block_count")?);
        if values.len() != layers {
            let (found, count) = (values.len(), self.name("block_count"));
            return Err(format!("`{name}` has {found} items; expected `{count}` = {layers}"));
        }
        let mut sizes = Vec::new();
        for (layer, value) in values.iter().enumerate() {
            let name = format!("{name}[{layer}]");
            let number = natural_number(value)
                .ok_or_else(|| format!("`{name}` is {}; expected a whole number", typed(value)))?;
            sizes.push(check_size(&name, number)?);
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

    fn positive(&self, key: &str) -> Result<f32, String> {
        let name = self.name(key);
        match self.get(key) {
            None => Err(format!("no `{name}`")),
            Some(&Value::F32(number)) if number.is_finite() && number > 0.0 => Ok(number),
            Some(value @ Value::F32(_)) => {
                Err(format!("`{name}` is {}; expected a positive number", shown(value)))
            }
            Some(value) => {
                Err(format!("`{name}` is {}; expected a positive f32 number", typed(value)))
            }
        }
    }

    fn positive_or(&self, key: &str, default: f32) -> Result<f32, String> {
        if self.has(key) { self.positive(key) } else { Ok(default) }
    }

    /// Refuses options that change the computation and are not supported.
    fn refuse_unknown_options(&self) -> Result<(), String> {
        let refuse = |key: &str, expected: &str| {
            let found = self.get(key).map(typed).unwrap_or_default();
            Err(format!(
                "`{}` is {found}, which is not supported; expected {expected}",
                self.name(key)
            ))
        };
        for key in
            ["expert_count", "attention.sliding_window_pattern", "logit_scale", "attention.scale"]
        {
            let experts = key == "expert_count" && self.prefix == EXPERTS;
            if self.has(key) && self.number(key) != Ok(0) && !experts {
                return refuse(key, "none");
            }
        }
        for key in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
            let key = &format!("rope.scaling.{key}");
            if self.positive_or(key, 1.0) != Ok(1.0) {
                return refuse(key, "1");
            }
        }
        match self.get("attention.causal") {
            None | Some(Value::Bool(true)) => Ok(()),
            Some(_) => refuse("attention.causal", "true"),
        }
    }

    fn scaling(&self) -> Result<Scaling, String> {
        let kind = match self.get("rope.scaling.type") {
            None => return self.old_scaling(),
            Some(Value::String(kind)) => kind.as_str(),
            Some(value) => return Err(self.unknown_scaling(value)),
        };
        match kind {
            "none" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: self.positive("rope.scaling.factor")? }),
            "yarn" => self.yarn(),
            _ => Err(self.unknown_scaling(&Value::String(kind.into()))),
        }
    }

    /// Reads the scaling from the key of old files, which have no type.
    fn old_scaling(&self) -> Result<Scaling, String> {
        if self.has("rope.scale_linear") {
            Ok(Scaling::Linear { factor: self.positive("rope.scale_linear")? })
        } else {
            Ok(Scaling::None)
        }
    }

    fn unknown_scaling(&self, value: &Value) -> String {
        let name = self.name("rope.scaling.type");
        format!("`{name}` is {}; expected one of none, linear, yarn", typed(value))
    }

    fn yarn(&self) -> Result<Scaling, String> {
        let factor = self.positive("rope.scaling.factor")?;
        let log = "rope.scaling.yarn_log_multiplier";
        let log = self.has(log).then(|| self.positive(log)).transpose()?;
        Ok(Scaling::Yarn {
            factor,
            fast: self.positive_or("rope.scaling.yarn_beta_fast", 32.0)?,
            slow: self.positive_or("rope.scaling.yarn_beta_slow", 1.0)?,
            original: self.original()?,
            length: yarn_length(factor, log.map(|log| (1.0, log))),
        })
    }

    /// Context length of the original training.
    fn original(&self) -> Result<f32, String> {
        Ok(self.size("rope.scaling.original_context_length")? as f32)
    }

    fn sharpening(&self) -> Result<Option<Sharpening>, String> {
        if !self.has("attention.temperature_scale") {
            return Ok(None);
        }
        let beta = self.positive("attention.temperature_scale")?;
        Ok(Some(Sharpening { beta, original: self.original()? }))
    }
}

/// Returns the value if it is a non-negative integer.
fn natural_number(value: &Value) -> Option<u64> {
    whole_number(value).and_then(|number| u64::try_from(number).ok())
}

/// Returns a dimension, if its number is allowed.
fn check_size(name: &str, size: u64) -> Result<usize, String> {
    match size {
        0 => Err(format!("`{name}` is 0; expected at least 1")),
        size if size > MAX_SIZE => Err(format!("`{name}` is {size}; expected at most {MAX_SIZE}")),
        size => Ok(size as usize),
    }
}
