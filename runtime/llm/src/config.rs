//! Configuration of a model, from `config.json` and `generation_config.json` or from GGUF metadata.

mod raw;

use std::path::Path;

use vattention_core::Shape;

use crate::files::{find_gguf, is_gguf, read_json};
use crate::rope::{Scaling, Sharpening};
use crate::{Error, Result};

use raw::{GenerationFile, Raw, size};

/// Supported architecture, by its name in `architectures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: Llama 2 and 3, and models of the same structure.
    Llama,
    /// `MistralForCausalLM`, whose context ends at the sliding window, and `Ministral3ForCausalLM`.
    Mistral,
    /// `Qwen2ForCausalLM`: queries, keys and values have biases.
    Qwen2,
    /// `Qwen3ForCausalLM`: queries and keys are normalised per head.
    Qwen3,
    /// `Qwen3MoeForCausalLM`: like Qwen3, with experts in most feed-forward networks.
    Qwen3Moe,
}

const ARCHITECTURES: [(&str, Architecture); 6] = [
    ("LlamaForCausalLM", Architecture::Llama),
    ("MistralForCausalLM", Architecture::Mistral),
    ("Ministral3ForCausalLM", Architecture::Mistral),
    ("Qwen2ForCausalLM", Architecture::Qwen2),
    ("Qwen3ForCausalLM", Architecture::Qwen3),
    ("Qwen3MoeForCausalLM", Architecture::Qwen3Moe),
];

/// Expected files of a model, for error messages.
const EXPECTED: &str =
    "expected a folder with config.json, tokenizer.json and safetensors, or a GGUF file";

/// Default of `max_window_layers` for Qwen2 and Qwen3.
const QWEN_FULL_LAYERS: usize = 28;

/// Largest number of layers; random streams distinguish this many.
pub(crate) const MOST_LAYERS: usize = 4096;

/// Dimensions and options of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Architecture of the model.
    pub architecture: Architecture,
    /// Elements per token between layers.
    pub hidden_size: usize,
    /// Elements per token within a layer's feed-forward network.
    pub intermediate_size: usize,
    /// Dimensions of the experts, if some layers have experts.
    pub experts: Option<Experts>,
    /// Numbers of the layers without experts, if the model has experts.
    pub without_experts: Vec<usize>,
    /// Number of layers.
    pub layers: usize,
    /// Number of heads in each layer, and their dimensions.
    pub shape: Shape,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Largest number of tokens of a sequence.
    pub context: usize,
    /// Key of `config.json` or of the GGUF metadata that limits the context.
    pub context_key: String,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Scaling,
    /// Growth of queries with their position.
    pub query_scaling: Option<Sharpening>,
    /// Epsilon of the RMS norms, added to the mean square.
    pub norm_epsilon: f64,
    /// True if the embeddings are also the weights of the logits.
    pub tied: bool,
    /// Linear maps that have a bias.
    pub biases: Biases,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
}

/// Dimensions of a feed-forward network with experts, of which each token uses a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Number of experts in a layer.
    pub count: usize,
    /// Number of experts that a token uses, at most `count`.
    pub per_token: usize,
    /// Elements per token within an expert.
    pub inner: usize,
    /// True if the weights of a token's experts are normalised to sum to 1.
    pub normalises: bool,
}

/// Linear maps that have a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Biases of queries, keys and values.
    pub inputs: bool,
    /// Bias of the attention's output.
    pub output: bool,
    /// Biases of the feed-forward network.
    pub feed_forward: bool,
}

impl Config {
    /// Reads the configuration of a checkpoint, a directory or a GGUF file.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] with the file and the key.
    pub fn open(path: &Path) -> Result<Self> {
        if is_gguf(path) { Self::from_gguf(path) } else { Self::from_directory(path) }
    }

    fn from_directory(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        if dir.is_dir() && !path.exists() {
            let expected = find_gguf(dir).unwrap_or_else(|| EXPECTED.into());
            return Err(Error::checkpoint(dir, format!("no config.json; {expected}")));
        }
        let raw: Raw = read_json(&path)?;
        let mut config = Self::from_raw(&raw).map_err(|reason| Error::checkpoint(&path, reason))?;
        let generation = dir.join("generation_config.json");
        if generation.exists() {
            let generation: GenerationFile = read_json(&generation)?;
            if let Some(ends) = generation.eos_token_id {
                config.ends = ends.into();
            }
        }
        Ok(config)
    }

    fn from_raw(raw: &Raw) -> Result<Self, String> {
        let architecture = architecture(raw)?;
        raw.refuse_unknown_options()?;
        let hidden_size = size("hidden_size", raw.hidden_size)?;
        let query_heads = size("num_attention_heads", raw.num_attention_heads)?;
        let layers = size("num_hidden_layers", raw.num_hidden_layers)?;
        if layers > MOST_LAYERS {
            return Err(format!("`num_hidden_layers` is {layers}; expected at most {MOST_LAYERS}"));
        }
        let (context, context_key) = context(raw, architecture, layers)?;
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: size("intermediate_size", raw.intermediate_size)?,
            experts: experts(raw, architecture)?,
            without_experts: raw.layers_without_experts(layers),
            layers,
            shape: shape(raw, architecture, hidden_size, query_heads)?,
            vocab_size: size("vocab_size", raw.vocab_size)?,
            context,
            context_key: context_key.into(),
            rope_theta: raw.rope_theta()?,
            rope_scaling: raw.rope_scaling()?,
            query_scaling: raw.query_scaling()?,
            norm_epsilon: raw.norm_epsilon()?,
            tied: raw.tie_word_embeddings.unwrap_or(false),
            biases: biases(raw, architecture),
            ends: raw.eos_token_id.clone().map(Vec::from).unwrap_or_default(),
        })
    }

    /// Checks that a sequence of this number of tokens fits into the model's context.
    ///
    /// # Errors
    /// [`Error::Input`] with the key of the checkpoint that limits the context.
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        let Self { context, context_key, .. } = self;
        if tokens <= *context {
            return Ok(());
        }
        let beyond = if context_key.ends_with("sliding_window") {
            " (attention beyond the sliding window is not supported)"
        } else {
            ""
        };
        let reason = format!(
            "the sequence would have {tokens} tokens; expected at most `{context_key}` = \
             {context}{beyond}"
        );
        Err(Error::input("context", reason))
    }

    /// Returns true if queries and keys are normalised per head.
    pub fn normalises_heads(&self) -> bool {
        matches!(self.architecture, Architecture::Qwen3 | Architecture::Qwen3Moe)
    }

    /// Dimensions of a layer's experts, if the layer has experts.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|_| !self.without_experts.contains(&layer))
    }
}

fn architecture(raw: &Raw) -> Result<Architecture, String> {
    let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
    let [name] = raw.architectures.as_slice() else {
        return Err(format!("`architectures` is {:?}; expected one of {known}", raw.architectures));
    };
    let found = ARCHITECTURES.into_iter().find(|(known, _)| known == name);
    found
        .map(|(_, architecture)| architecture)
        .ok_or_else(|| format!("the architecture {name} is not supported; expected one of {known}"))
}

fn shape(
    raw: &Raw,
    architecture: Architecture,
    hidden_size: usize,
    query_heads: usize,
) -> Result<Shape, String> {
    let kv_heads = match raw.num_key_value_heads {
        None if architecture == Architecture::Llama => query_heads,
        heads => size("num_key_value_heads", heads)?,
    };
    let head_dim = match raw.head_dim {
        Some(_) => size("head_dim", raw.head_dim)?,
        None if architecture == Architecture::Qwen3 => 128,
        None if hidden_size.is_multiple_of(query_heads) => hidden_size / query_heads,
        None => {
            return Err(format!(
                "`hidden_size` is {hidden_size}; expected a multiple of `num_attention_heads` = \
                 {query_heads}, or `head_dim`"
            ));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(format!("`head_dim` is {head_dim}; expected an even number"));
    }
    let shape = Shape { query_heads, kv_heads, head_dim, value_dim: head_dim };
    shape.check().map_err(|error| error.to_string())?;
    Ok(shape)
}

/// Returns the largest number of tokens of a sequence, and the key that limits it. Within a sliding
/// window the model attends to all tokens; this crate does not support longer sequences.
fn context(
    raw: &Raw,
    architecture: Architecture,
    layers: usize,
) -> Result<(usize, &'static str), String> {
    let positions = size("max_position_embeddings", raw.max_position_embeddings)?;
    let slides = match architecture {
        Architecture::Mistral => true,
        Architecture::Qwen2 | Architecture::Qwen3 => {
            some_layer_slides(raw, layers)? && raw.use_sliding_window.unwrap_or(false)
        }
        // The window applies to every layer; `layer_types` and `max_window_layers` have no effect.
        Architecture::Qwen3Moe => raw.use_sliding_window.unwrap_or(false),
        Architecture::Llama => false,
    };
    match raw.sliding_window {
        Some(window) if slides && window < positions => {
            Ok((size("sliding_window", Some(window))?, "sliding_window"))
        }
        _ => Ok((positions, "max_position_embeddings")),
    }
}

/// Returns whether any layer of Qwen2 or Qwen3 has a sliding window, if the model uses one.
fn some_layer_slides(raw: &Raw, layers: usize) -> Result<bool, String> {
    let Some(types) = &raw.layer_types else {
        return Ok(raw.max_window_layers.unwrap_or(QWEN_FULL_LAYERS) < layers);
    };
    if types.len() != layers {
        let found = types.len();
        return Err(format!(
            "`layer_types` has {found} items; expected `num_hidden_layers` = {layers}"
        ));
    }
    for (layer, kind) in types.iter().enumerate() {
        if !matches!(kind.as_str(), "full_attention" | "sliding_attention") {
            return Err(format!(
                "`layer_types`: layer {layer} is {kind:?}; expected \"full_attention\" or \
                 \"sliding_attention\""
            ));
        }
    }
    Ok(types.iter().any(|kind| kind == "sliding_attention"))
}

fn experts(raw: &Raw, architecture: Architecture) -> Result<Option<Experts>, String> {
    if architecture != Architecture::Qwen3Moe {
        return Ok(None);
    }
    let count = size("num_experts", raw.num_experts)?;
    let per_token = size("num_experts_per_tok", raw.num_experts_per_tok)?;
    if per_token > count {
        return Err(format!(
            "`num_experts_per_tok` is {per_token}; expected at most `num_experts` = {count}"
        ));
    }
    let inner = size("moe_intermediate_size", raw.moe_intermediate_size)?;
    Ok(Some(Experts { count, per_token, inner, normalises: raw.norm_topk_prob.unwrap_or(false) }))
}

fn biases(raw: &Raw, architecture: Architecture) -> Biases {
    match architecture {
        Architecture::Llama | Architecture::Qwen3 | Architecture::Qwen3Moe => {
            let attention = raw.attention_bias.unwrap_or(false);
            let feed_forward = architecture == Architecture::Llama && raw.mlp_bias.unwrap_or(false);
            Biases { inputs: attention, output: attention, feed_forward }
        }
        Architecture::Mistral => Biases::default(),
        Architecture::Qwen2 => Biases { inputs: true, ..Biases::default() },
    }
}
