//! Tensors of a checkpoint, a directory or GGUF files, by the [names](names) of this crate.

mod experts;
mod folder;
mod mxfp4;
pub(crate) mod names;
mod nesting;
pub(crate) mod number;
mod shard;

use std::path::{Path, PathBuf};

use crate::Result;
use crate::config::Config;
use crate::family::Family;
use crate::files::is_gguf;
use crate::gguf::Gguf;
use crate::matrix::Matrix;

pub(crate) use experts::ExpertMaps;
use folder::Folder;

/// Bytes that the weights of a checkpoint take in memory, computed from the headers of its files. A
/// number of a matrix takes 2 bytes in bf16, its size in the file in quantised types (up to 3 %
/// more in Q4_K, Q5_K, Q6_K and IQ4_XS), and 4 bytes otherwise; every other number takes 4 bytes.
/// Tied weights that are stored twice count twice, although equal ones are in memory once. Reading
/// a prompt takes 4 more bytes for each number of a layer's largest matrix in bf16.
///
/// # Errors
/// The errors of [`Model::open`](crate::Model::open) that do not depend on the names, shapes or
/// numbers of tensors.
pub fn weight_bytes(path: &Path) -> Result<u64> {
    Config::open(path)?;
    Ok(match CheckpointTensors::open(path)? {
        CheckpointTensors::Folder(folder) => folder.bytes(),
        CheckpointTensors::Gguf(file) => file.bytes(),
    })
}

/// Files that contain the weights of a checkpoint: the safetensors files of a directory, or a GGUF
/// file and, if it is the first part of a split model, all other parts.
///
/// # Errors
/// The errors of [`Model::open`](crate::Model::open) that do not depend on the configuration or the
/// numbers of tensors.
pub fn weight_files(path: &Path) -> Result<Vec<PathBuf>> {
    Ok(CheckpointTensors::open(path)?.files())
}

/// Tensors of a checkpoint that have not been taken yet.
#[derive(Debug)]
pub(crate) enum CheckpointTensors {
    Folder(Folder),
    Gguf(Gguf),
}

impl CheckpointTensors {
    /// Opens the files of a checkpoint, and checks that they are complete. Numbers are read when a
    /// tensor is taken.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if is_gguf(path) {
            Ok(Self::Gguf(Gguf::open(path)?))
        } else {
            Ok(Self::Folder(Folder::open(path)?))
        }
    }

    /// Files that contain the tensors.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Folder(folder) => folder.files(),
            Self::Gguf(gguf) => gguf.paths(),
        }
    }

    /// Sets the family of a directory's model, whose names its tensors have.
    pub(crate) fn set_family(&mut self, family: &'static Family) {
        if let Self::Folder(folder) = self {
            folder.set_family(family);
        }
    }

    /// Reads a matrix of this shape, in the number type in which it stays in memory.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        match self {
            Self::Folder(folder) => folder.matrix(name, shape),
            Self::Gguf(file) => file.matrix(name, shape),
        }
    }

    /// Reads matrices of `inputs` columns and these numbers of rows, which one tensor stores one
    /// after the other.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        rows: &[usize],
        inputs: usize,
    ) -> Result<Vec<Matrix>> {
        let shape = [rows.iter().sum(), inputs];
        match self {
            Self::Folder(folder) => folder.matrices(name, shape, rows),
            Self::Gguf(file) => file.matrices(name, &shape, rows),
        }
    }

    /// Reads a vector of `size` elements.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        match self {
            Self::Folder(folder) => folder.vector(name, size),
            Self::Gguf(file) => file.vector(name, size),
        }
    }

    /// Reads the weights of a norm over `size` elements. Hugging Face checkpoints of some families
    /// store them less 1.
    pub(crate) fn norm(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let mut weights = self.vector(name, size)?;
        if let Self::Folder(folder) = self
            && folder.family().centred_norms
        {
            for weight in &mut weights {
                *weight += 1.0;
            }
        }
        Ok(weights)
    }

    /// Reads the divisors of the rotary frequencies, `[size]`, if the checkpoint has a tensor of
    /// them.
    pub(crate) fn rope_factors(&mut self, size: usize) -> Result<Option<Vec<f32>>> {
        match self {
            Self::Folder(_) => Ok(None),
            Self::Gguf(file) => file.rope_factors(size),
        }
    }

    /// Returns whether a tensor of this name exists and has not been taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.has(name),
            Self::Gguf(file) => file.has(name),
        }
    }

    /// Returns whether all tensors of a directory's layer have been taken.
    pub(crate) fn is_layer_taken(&self, layer: usize) -> bool {
        match self {
            Self::Folder(folder) => folder.is_layer_taken(layer),
            Self::Gguf(_) => false,
        }
    }

    /// Refuses tensors that have not been taken: they do not belong to the configured model.
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.finish(),
            Self::Gguf(file) => file.finish(),
        }
    }
}
