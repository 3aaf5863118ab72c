//! Weights of a model, which its sequences share.

use std::path::Path;

use vattention_core::step::cap_logits;

use crate::config::Config;
use crate::inputs::LinearInputs;
use crate::layer::DecoderLayer;
use crate::linear::{Linear, LinearScratch, Norm};
use crate::matrix::Matrix;
use crate::rope::{Rope, Sharpening, Tables};
use crate::weights::CheckpointTensors;
use crate::weights::names::{EMBEDDINGS, HEAD, NORM};
use crate::{Error, Result};

/// Weights of a decoder-only transformer, in host memory. Matrices in bf16 stay in bf16 and are
/// multiplied in f32. Matrices in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS
/// and MXFP4 are packed and multiplied by integer instructions, with the accuracy of f32. All other
/// numbers are stored in f32.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    /// `[vocab_size, hidden_size]`
    embeddings: Matrix,
    pub(crate) layers: Vec<DecoderLayer>,
    ropes: Vec<Rope>,
    norm: Norm,
    head: Linear,
}

impl Model {
    /// Loads a checkpoint: a GGUF file, the first part of a split one (`-00001-of-00003.gguf`, with
    /// the other parts beside it), or a directory in the layout of Hugging Face with
    /// `config.json`, `model.safetensors` or shards and their index, and optionally
    /// `generation_config.json`. Other files are not read.
    ///
    /// Cost: the memory that [`weight_bytes`](crate::weight_bytes) returns, and one pass over all
    /// weights.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] with the file and the tensor or key: an
    /// unsupported architecture, option or number type, an incomplete file, or a tensor that is
    /// missing, superfluous, of a wrong shape, or not finite.
    pub fn open(path: &Path) -> Result<Self> {
        let mut config = Config::open(path)?;
        let mut weights = CheckpointTensors::open(path)?;
        weights.set_family(config.family);
        let (embeddings, head) = open_ends(&mut weights, &config)?;
        config.tied = head.is_none();
        let layers =
            (0..config.layers).map(|number| DecoderLayer::open(&mut weights, number, &config));
        let layers = layers.collect::<Result<_>>()?;
        let name = NORM.trim_end_matches(".weight");
        let norm = Norm::open(&mut weights, name, config.hidden_size, config.norm_epsilon)?;
        let head = Linear::new(head.unwrap_or_else(|| embeddings.clone()));
        let rope = |rotary| Rope::new(config.shape.head_dim, rotary);
        let mut ropes: Vec<Rope> = config.ropes.iter().map(rope).collect();
        if let Some(factors) = weights.rope_factors(ropes[0].pairs())? {
            ropes[0].divide_by(&factors);
        }
        weights.finish()?;
        Ok(Self { config, embeddings, layers, ropes, norm, head })
    }

    /// Dimensions and options of the model. Unlike in [`Config::open`], `tied` is exact: it is true
    /// only if the stored weights are tied.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Logits of the sinks of a layer's query heads, `[query_heads]`, if the model has sinks.
    pub fn sink_logits(&self, layer: usize) -> Option<&[f32]> {
        self.layers[layer].form().sinks
    }

    /// Checks that the vocabulary contains all tokens, and that they fit into the model's context
    /// after `before` others.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn check(&self, tokens: &[u32], before: usize) -> Result<()> {
        let vocabulary = self.config.vocab_size;
        if let Some(i) = tokens.iter().position(|&token| token as usize >= vocabulary) {
            let reason = format!("{} at [{i}]; expected less than {vocabulary}", tokens[i]);
            return Err(Error::input("tokens", reason));
        }
        self.check_length(before + tokens.len())
    }

    /// Checks that the model's context holds this number of tokens.
    ///
    /// # Errors
    /// The errors of [`Config::check_length`].
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        self.config.check_length(tokens)
    }

    /// Returns the embeddings of tokens, `[tokens, hidden_size]`.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let mut x = Vec::with_capacity(tokens.len() * self.config.hidden_size);
        for &token in tokens {
            x.extend(self.embeddings.row(token as usize));
        }
        scale(&mut x, self.config.block.embedding_scale);
        x
    }

    /// Computes the tables of the given positions for all rotary embeddings, and the factors of
    /// queries.
    pub(crate) fn tables(&self, positions: impl Iterator<Item = usize> + Clone) -> Tables {
        let ropes = self.ropes.iter().map(|rope| rope.table(positions.clone())).collect();
        let factors = |scaling: Sharpening| positions.map(|it| scaling.factor(it)).collect();
        Tables { ropes, factors: self.config.query_scaling.map(factors) }
    }

    /// Returns the logits after tokens, `[tokens, vocab_size]`; `x` is `[tokens, hidden_size]`.
    pub(crate) fn logits(&self, x: &[f32]) -> Vec<f32> {
        let tokens = x.len() / self.config.hidden_size;
        let mut normed = x.to_vec();
        self.norm.apply_in_place(&mut normed);
        let mut logits = vec![0.0; tokens * self.config.vocab_size];
        let inputs = LinearInputs::new(&normed, tokens);
        self.head.apply(&inputs, &mut logits, &mut LinearScratch::default());
        scale(&mut logits, self.config.block.logits_scale);
        if let Some(cap) = self.config.block.logits_cap {
            cap_logits(&mut logits, cap);
        }
        logits
    }
}

/// Multiplies numbers by a factor, which is 1 in most models.
fn scale(numbers: &mut [f32], factor: f32) {
    if factor != 1.0 {
        for number in numbers {
            *number *= factor;
        }
    }
}

/// Reads the embeddings, and the weights of the logits unless they are tied to the embeddings.
///
/// Weights that are stored under both names count as tied only if they are equal. If only the
/// weights of the logits are stored, they serve as the embeddings. transformers does the same.
fn open_ends(weights: &mut CheckpointTensors, config: &Config) -> Result<(Matrix, Option<Matrix>)> {
    let sizes = [config.vocab_size, config.hidden_size];
    if config.tied && !weights.has(EMBEDDINGS) && weights.has(HEAD) {
        return Ok((weights.matrix(HEAD, sizes)?, None));
    }
    let embeddings = weights.matrix(EMBEDDINGS, sizes)?;
    if config.tied && !weights.has(HEAD) {
        return Ok((embeddings, None));
    }
    let head = weights.matrix(HEAD, sizes)?;
    let tied = config.tied && embeddings.equals(&head);
    Ok((embeddings, (!tied).then_some(head)))
}
