//! A model: its weights, which many sequences share.

use std::path::Path;

use candle_core::{DType, Device, Result as Numbers, Tensor};

use crate::config::Config;
use crate::layer::Layer;
use crate::linear::{Linear, Norm};
use crate::rope::Rope;
use crate::weights::{HEAD, Weights};
use crate::{Error, Result};

/// The weights of a decoder-only transformer, in the host's memory. Matrices that are stored in bf16
/// stay so, everything else is in f32; all is computed in f32.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    /// `[vocab_size, hidden_size]`, in f32 or bf16.
    embeddings: Tensor,
    pub(crate) layers: Vec<Layer>,
    pub(crate) rope: Rope,
    norm: Norm,
    head: Linear,
}

impl Model {
    /// Loads a directory as Hugging Face has them: `config.json`, `generation_config.json` if there
    /// is one, and `model.safetensors` or shards and their index. Other files are not read.
    ///
    /// Costs the memory that [`weight_bytes`](crate::weight_bytes) tells, 2 or 4 bytes per weight, and
    /// a pass over all of them.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`] that names the file and the tensor or key: another
    /// architecture, an option that is not known here, a file that is not whole, a tensor that is
    /// missing, superfluous, of a wrong shape, or holds a number that is not finite.
    pub fn open(dir: &Path) -> Result<Self> {
        let config = Config::open(dir)?;
        let mut weights = Weights::open(dir)?;
        let sizes = [config.vocab_size, config.hidden_size];
        let embeddings = weights.take("model.embed_tokens.weight", &sizes)?;
        let layers = (0..config.layers).map(|number| Layer::open(&mut weights, number, &config));
        let layers = layers.collect::<Result<_>>()?;
        let norm = Norm::open(&mut weights, "model.norm", config.hidden_size, config.norm_epsilon)?;
        let head = if config.tied {
            weights.skip(HEAD);
            Linear::tied(embeddings.clone())
        } else {
            let sizes = [config.hidden_size, config.vocab_size];
            Linear::open(&mut weights, "lm_head", sizes, false)?
        };
        weights.finish()?;
        let rope = Rope::new(config.shape.head_dim, config.rope_theta, config.rope_scaling);
        Ok(Self { config, embeddings, layers, rope, norm, head })
    }

    /// Its dimensions and options.
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

    /// `[tokens, hidden_size]`, in f32.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Numbers<Tensor> {
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        self.embeddings.index_select(&tokens, 0)?.to_dtype(DType::F32)
    }

    /// The logits of the last of tokens `[tokens, hidden_size]`, `[vocab_size]`.
    pub(crate) fn logits(&self, x: &Tensor) -> Numbers<Vec<f32>> {
        let last = x.narrow(0, x.dim(0)? - 1, 1)?;
        self.head.apply(&self.norm.apply(&last)?)?.flatten_all()?.to_vec1()
    }
}
