//! A model: its weights, which many sequences share.

use std::path::Path;

use crate::config::Config;
use crate::inputs::LinearInputs;
use crate::layer::DecoderLayer;
use crate::linear::{Linear, LinearScratch, Norm};
use crate::matrix::Matrix;
use crate::rope::Rope;
use crate::weights::{EMBEDDINGS, HEAD, Weights};
use crate::{Error, Result};

/// The weights of a decoder-only transformer, in the host's memory. Matrices in bf16 stay so, and are
/// multiplied in f32. Those in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are packed, and
/// multiplied by integers, which is as exact. Everything else is in f32.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    /// `[vocab_size, hidden_size]`
    embeddings: Matrix,
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) rope: Rope,
    norm: Norm,
    head: Linear,
}

impl Model {
    /// Loads a checkpoint: a directory as Hugging Face has them (`config.json`,
    /// `generation_config.json` if there is one, and `model.safetensors` or shards and their index;
    /// other files are not read), or a GGUF file.
    ///
    /// Costs the memory that [`weight_bytes`](crate::weight_bytes) tells and a pass over all weights.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] that names the file and the tensor or key: another
    /// architecture, an option or a type that is not known here, a file that is not whole, a tensor
    /// that is missing, superfluous, of a wrong shape, or holds a number that is not finite.
    pub fn open(path: &Path) -> Result<Self> {
        let mut config = Config::open(path)?;
        let mut weights = Weights::open(path)?;
        let (embeddings, head) = open_ends(&mut weights, &config)?;
        config.tied = head.is_none();
        let layers =
            (0..config.layers).map(|number| DecoderLayer::open(&mut weights, number, &config));
        let layers = layers.collect::<Result<_>>()?;
        let norm = Norm::open(&mut weights, "model.norm", config.hidden_size, config.norm_epsilon)?;
        let head = Linear::new(head.unwrap_or_else(|| embeddings.clone()));
        let factors = weights.rope_factors(config.shape.head_dim / 2)?;
        weights.finish()?;
        let rope = Rope::new(
            config.shape.head_dim,
            config.rope_theta,
            config.rope_scaling,
            config.query_scaling,
        );
        let rope = match factors {
            Some(factors) => rope.divided_by(&factors),
            None => rope,
        };
        Ok(Self { config, embeddings, layers, rope, norm, head })
    }

    /// Dimensions and options of the model. `tied` is true if the weights are tied, which
    /// [`Config::open`] cannot know.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Refuses tokens that the model does not have, and more of them than it can place after
    /// `before` others.
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

    /// Refuses sequences of more tokens than the model can have.
    ///
    /// # Errors
    /// As [`Config::check_length`].
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        self.config.check_length(tokens)
    }

    /// `[tokens, hidden_size]`
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        let mut x = Vec::with_capacity(tokens.len() * self.config.hidden_size);
        for &token in tokens {
            x.extend(self.embeddings.row(token as usize));
        }
        x
    }

    /// The logits of the last of tokens `[tokens, hidden_size]`, `[vocab_size]`.
    pub(crate) fn logits(&self, x: &[f32]) -> Vec<f32> {
        let mut last = x[x.len() - self.config.hidden_size..].to_vec();
        self.norm.apply_in_place(&mut last);
        let mut logits = vec![0.0; self.config.vocab_size];
        self.head.apply(&LinearInputs::new(&last, 1), &mut logits, &mut LinearScratch::default());
        logits
    }
}

/// Reads the embeddings, and the weights of the logits unless they are tied to the embeddings.
///
/// Tied weights that are stored under both names are tied only if they are equal. If only those of
/// the logits are stored, the embeddings are tied to them. transformers does the same.
fn open_ends(weights: &mut Weights, config: &Config) -> Result<(Matrix, Option<Matrix>)> {
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
