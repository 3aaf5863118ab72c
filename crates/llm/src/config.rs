//! What a checkpoint says of its model: `config.json` and `generation_config.json`, or GGUF's metadata.

mod raw;

use std::path::Path;

use vattention_core::Shape;

use crate::rope::{Scaling, Sharpening};
use crate::{Error, Result, gguf};

use raw::{Generation, Raw, size};

pub(crate) use raw::read_json;

/// An architecture that is known here, by its name in `architectures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: Llama 2 and 3, and what is built like them.
    Llama,
    /// `MistralForCausalLM`, within its sliding window, and `Ministral3ForCausalLM`.
    Mistral,
    /// `Qwen2ForCausalLM`: queries, keys and values have biases.
    Qwen2,
    /// `Qwen3ForCausalLM`: each head of queries and keys is normalised.
    Qwen3,
}

const ARCHITECTURES: [(&str, Architecture); 5] = [
    ("LlamaForCausalLM", Architecture::Llama),
    ("MistralForCausalLM", Architecture::Mistral),
    ("Ministral3ForCausalLM", Architecture::Mistral),
    ("Qwen2ForCausalLM", Architecture::Qwen2),
    ("Qwen3ForCausalLM", Architecture::Qwen3),
];

/// Layers that a random stream can tell apart.
pub(crate) const MOST_LAYERS: usize = 4096;

/// A model's dimensions and options.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Its architecture.
    pub architecture: Architecture,
    /// Elements of a token between layers.
    pub hidden_size: usize,
    /// Elements of a token within a layer's feed-forward network.
    pub intermediate_size: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of each layer, and their dimensions.
    pub shape: Shape,
    /// Different tokens.
    pub vocab_size: usize,
    /// Tokens that a sequence can have.
    pub context: usize,
    /// What limits the context: a key of `config.json`, or of a GGUF file.
    pub context_key: String,
    /// The base of the rotary frequencies.
    pub rope_theta: f32,
    /// How they are scaled.
    pub rope_scaling: Scaling,
    /// How queries grow with their position.
    pub query_scaling: Option<Sharpening>,
    /// Added to mean squares before their root is taken.
    pub norm_epsilon: f64,
    /// Whether logits use the embeddings as their weights.
    pub tied: bool,
    /// Which projections have biases.
    pub biases: Biases,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
}

/// Which linear layers add a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Those of queries, keys and values.
    pub inputs: bool,
    /// That of attention's output.
    pub output: bool,
    /// Those of the feed-forward network.
    pub feed_forward: bool,
}

impl Config {
    /// Reads what a checkpoint, a directory or a GGUF file, says of its model.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] that names the file and the key.
    pub fn open(path: &Path) -> Result<Self> {
        if gguf::is_one(path) { Self::of_gguf(path) } else { Self::of_directory(path) }
    }

    fn of_directory(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let raw: Raw = read_json(&path)?;
        let mut config = Self::from_raw(&raw).map_err(|reason| Error::checkpoint(&path, reason))?;
        let generation = dir.join("generation_config.json");
        if generation.exists() {
            let generation: Generation = read_json(&generation)?;
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
        let (context, context_key) = context(raw, architecture)?;
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: size("intermediate_size", raw.intermediate_size)?,
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

    /// Refuses sequences of more tokens than the model can have.
    ///
    /// # Errors
    /// [`Error::Input`] that names the key of the checkpoint that says so.
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

    /// Whether each head of queries and keys is normalised.
    pub fn normalises_heads(&self) -> bool {
        self.architecture == Architecture::Qwen3
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

/// Within its sliding window a model attends to everything; beyond it this crate would compute
/// something else than the model.
fn context(raw: &Raw, architecture: Architecture) -> Result<(usize, &'static str), String> {
    let positions = size("max_position_embeddings", raw.max_position_embeddings)?;
    let slides = match architecture {
        Architecture::Mistral => true,
        Architecture::Qwen2 | Architecture::Qwen3 => raw.use_sliding_window.unwrap_or(false),
        Architecture::Llama => false,
    };
    match raw.sliding_window {
        Some(window) if slides && window < positions => {
            Ok((size("sliding_window", Some(window))?, "sliding_window"))
        }
        _ => Ok((positions, "max_position_embeddings")),
    }
}

fn biases(raw: &Raw, architecture: Architecture) -> Biases {
    match architecture {
        Architecture::Llama | Architecture::Qwen3 => {
            let attention = raw.attention_bias.unwrap_or(false);
            let feed_forward = architecture == Architecture::Llama && raw.mlp_bias.unwrap_or(false);
            Biases { inputs: attention, output: attention, feed_forward }
        }
        Architecture::Mistral => Biases::default(),
        Architecture::Qwen2 => Biases { inputs: true, ..Biases::default() },
    }
}
