//! The tensors of a checkpoint, a directory or a GGUF file, by Hugging Face's names.

mod folder;
pub(crate) mod number;
mod shard;

use std::path::Path;

use crate::Result;
use crate::config::Config;
use crate::files::is_gguf;
use crate::gguf::Gguf;
use crate::matrix::Matrix;

use folder::Folder;

/// Name of the embeddings.
pub(crate) const EMBEDDINGS: &str = "model.embed_tokens.weight";

/// Name of the weights of the logits, which may be missing if they are tied to the embeddings.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Bytes that the weights of a checkpoint take in memory, known from the headers of its files. For
/// each number of a matrix, 2 in bf16, what the file has in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and
/// Q6_K (up to 3 % more in the last three), 4 for every other number. Tied weights that are stored
/// twice count twice, although equal ones are stored once in memory. Reading a prompt takes 4 more for
/// each number of a layer's largest matrix in bf16.
///
/// # Errors
/// As [`Model::open`](crate::Model::open), as far as it depends on neither names, shapes nor numbers.
pub fn weight_bytes(path: &Path) -> Result<u64> {
    Config::open(path)?;
    Ok(match Weights::open(path)? {
        Weights::Folder(folder) => folder.bytes(),
        Weights::Gguf(file) => file.bytes(),
    })
}

/// The tensors that nobody has asked for yet.
#[derive(Debug)]
pub(crate) enum Weights {
    Folder(Folder),
    Gguf(Gguf),
}

impl Weights {
    /// Opens the files of a checkpoint, and checks that they are whole. Numbers are read when they
    /// are asked for.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if is_gguf(path) {
            Ok(Self::Gguf(Gguf::open(path)?))
        } else {
            Ok(Self::Folder(Folder::open(path)?))
        }
    }

    /// Reads a matrix of that shape, in the type in which it is kept in memory.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        match self {
            Self::Folder(folder) => folder.matrix(name, shape),
            Self::Gguf(file) => file.matrix(name, shape),
        }
    }

    /// Reads the matrices of that shape of `count` experts: `{name}.experts.0.{part}.weight` and so on, or one tensor of all.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        part: &str,
        count: usize,
        shape: [usize; 2],
    ) -> Result<Vec<Matrix>> {
        match self {
            Self::Folder(folder) => (0..count)
                .map(|expert| {
                    folder.matrix(&format!("{name}.experts.{expert}.{part}.weight"), shape)
                })
                .collect(),
            Self::Gguf(file) => {
                file.matrices(&format!("{name}.experts.{part}.weight"), count, shape)
            }
        }
    }

    /// Reads a vector of `size` elements.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        match self {
            Self::Folder(folder) => folder.vector(name, size),
            Self::Gguf(file) => file.vector(name, size),
        }
    }

    /// What the rotary frequencies are divided by, `[size]`, if the checkpoint has that as a tensor.
    pub(crate) fn rope_factors(&mut self, size: usize) -> Result<Option<Vec<f32>>> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Gguf(file) => file.rope_factors(size),
        }
    }

    /// Returns whether there is a tensor of this name that has not been taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.has(name),
            Self::Gguf(file) => file.has(name),
        }
    }

    /// Refuses tensors that nobody has asked for: the model is another than its config says.
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.finish(),
            Self::Gguf(file) => file.finish(),
        }
    }
}
