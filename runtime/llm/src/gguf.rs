//! Models in GGUF, the format of llama.cpp: dimensions, tokenizer, tensors, in a file or in several
//! parts.

mod config;
mod header;
mod numbers;
mod part;
mod split;
mod tensor;
pub(crate) mod tokenizer;
mod types;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Value;
use rayon::prelude::*;

use crate::config::Config;
use crate::family::{Family, LLAMA_LIKE};
use crate::matrix::Matrix;
use crate::weights::names::gguf_name;
use crate::{Error, Result};

use config::LongRopeFactors;
use numbers::{deinterleave, read_matrix, read_numbers};
use part::GgufPart;
use tensor::GgufTensor;
use types::StoredType;

/// Tensor of the divisors of Llama 3's rotary frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Tensors of the divisors of the frequencies of longrope, within the original context and beyond.
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";

impl Config {
    /// Reads the configuration of a GGUF file.
    pub(crate) fn from_gguf(path: &Path) -> Result<Self> {
        let mut file = Gguf::open(path)?;
        let factors = file.longrope_factors()?;
        config::config(&file.metadata, factors, |name| file.has(name))
            .map_err(|reason| Error::checkpoint(path, reason))
    }
}

/// Open files of a model, and their tensors that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Gguf {
    /// Path of the first part.
    path: PathBuf,
    parts: Vec<GgufPart>,
    pub(crate) metadata: HashMap<String, Value>,
    tensors: BTreeMap<String, PlacedTensor>,
    /// Family of the model, whose names the tensors have.
    family: &'static Family,
    /// Numbers of query heads and KV heads, if their rows are in interleaved rotary order.
    rotary_heads: Option<(usize, usize)>,
}

/// Tensor of a part.
#[derive(Debug)]
struct PlacedTensor {
    /// Index of the part.
    part: usize,
    tensor: GgufTensor,
}

/// Tensor that was taken: its description and bytes, and where it is, for errors.
struct TakenTensor {
    path: PathBuf,
    gguf_name: String,
    stored: StoredType,
    bytes: Vec<u8>,
}

impl Gguf {
    /// Reads the header of a file and, if it is the first part of a split model, of all parts.
    /// Checks that every tensor is within its file, is aligned, and does not overlap another.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut parts = split::open_parts(path)?;
        let mut tensors = BTreeMap::new();
        for part in 0..parts.len() {
            for (name, tensor) in std::mem::take(&mut parts[part].header.tensors) {
                let Some(other) = tensors.insert(name.clone(), PlacedTensor { part, tensor })
                else {
                    continue;
                };
                let other = parts[other.part].path().display();
                let reason = format!("tensor `{name}` is in {other} too; expected it in one part");
                return Err(Error::checkpoint(parts[part].path(), reason));
            }
        }
        let metadata = std::mem::take(&mut parts[0].header.metadata);
        let rotary_heads = config::interleaved_heads(&metadata);
        let family = config::family(&metadata).map_or(&LLAMA_LIKE, |(_, found)| found.family);
        Ok(Self { path: path.into(), parts, metadata, tensors, family, rotary_heads })
    }

    /// Path of the file, or of the first part.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Paths of all parts.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.parts.iter().map(|part| part.path().into()).collect()
    }

    /// Returns whether a tensor exists and has not been taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(&gguf_name(self.family, name))
    }

    /// Reads a matrix of this shape, in the number type in which it is fastest to multiply.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let mut taken = self.take(name, &shape)?;
        if let Some(heads) = self.interleaved_heads(name) {
            taken.bytes = deinterleave(&taken.bytes, shape[0], heads);
        }
        read_matrix(taken.stored, &taken.bytes, shape).map_err(|reason| taken.refuse(&reason))
    }

    /// Reads matrices of these numbers of rows, which one tensor of this shape stores one after the
    /// other.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        shape: &[usize],
        rows: &[usize],
    ) -> Result<Vec<Matrix>> {
        let taken = self.take(name, shape)?;
        let row_bytes = taken.bytes.len() / rows.iter().sum::<usize>();
        let mut parts = Vec::with_capacity(rows.len());
        let mut rest = taken.bytes.as_slice();
        for &rows in rows {
            let (part, after) = rest.split_at(rows * row_bytes);
            parts.push((rows, part));
            rest = after;
        }
        let inputs = shape[shape.len() - 1];
        let matrices = parts
            .into_par_iter()
            .map(|(rows, bytes)| read_matrix(taken.stored, bytes, [rows, inputs]));
        // All results are collected, so that the error is that of the first wrong matrix.
        let matrices: Vec<Result<Matrix, String>> = matrices.collect();
        matrices.into_iter().collect::<Result<_, _>>().map_err(|reason| taken.refuse(&reason))
    }

    /// Reads a vector of `size` elements.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let numbers = self.numbers(name, &[size])?;
        Ok(match self.interleaved_heads(name) {
            Some(heads) => deinterleave(&numbers, size, heads),
            None => numbers,
        })
    }

    /// Reads the numbers of a tensor of this shape.
    pub(crate) fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let taken = self.take(name, shape)?;
        let numbers = read_numbers(taken.stored, &taken.bytes);
        numbers.map_err(|reason| taken.refuse(&reason))
    }

    /// Number of heads that a tensor's rows belong to, if the rows are in interleaved rotary order.
    fn interleaved_heads(&self, name: &str) -> Option<usize> {
        let heads = self.rotary_heads?;
        match name.splitn(3, '.').nth(2)? {
            "attn_q.weight" | "attn_q.bias" => Some(heads.0),
            "attn_k.weight" | "attn_k.bias" => Some(heads.1),
            _ => None,
        }
    }

    /// Takes the divisors of the rotary frequencies of longrope, if the file has them.
    fn longrope_factors(&mut self) -> Result<Option<LongRopeFactors>> {
        let size = |name: &str| self.tensors.get(name).map(|placed| placed.tensor.shape.clone());
        let (Some(short), Some(long)) = (size(SHORT_FACTORS), size(LONG_FACTORS)) else {
            return Ok(None);
        };
        let (short, long) =
            (self.numbers(SHORT_FACTORS, &short)?, self.numbers(LONG_FACTORS, &long)?);
        Ok(Some(LongRopeFactors { short, long }))
    }

    /// Reads the divisors of the rotary frequencies, if the file has them.
    pub(crate) fn rope_factors(&mut self, size: usize) -> Result<Option<Vec<f32>>> {
        // These were read with the configuration.
        self.longrope_factors()?;
        let Some(placed) = self.tensors.get(ROPE_FACTORS) else { return Ok(None) };
        let path = self.parts[placed.part].path().to_path_buf();
        let factors = self.vector(ROPE_FACTORS, size)?;
        match factors.iter().find(|factor| **factor <= 0.0) {
            None => Ok(Some(factors)),
            Some(factor) => {
                let reason = format!(" has {factor}; expected positive numbers");
                Err(refuse(&path, ROPE_FACTORS, &reason))
            }
        }
    }

    /// Bytes in memory of the tensors that have not been taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(|placed| placed.tensor.bytes_in_memory()).sum()
    }

    /// Refuses tensors that have not been taken.
    pub(crate) fn finish(self) -> Result<()> {
        match self.tensors.first_key_value() {
            None => Ok(()),
            Some((name, placed)) => {
                let path = self.parts[placed.part].path();
                Err(refuse(path, name, " has no place in a model of this architecture"))
            }
        }
    }

    /// Takes a tensor.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TakenTensor> {
        let gguf_name = gguf_name(self.family, name);
        let Some(PlacedTensor { part, tensor }) = self.tensors.remove(&gguf_name) else {
            let reason = format!("no tensor `{gguf_name}`; expected one of shape {shape:?}");
            return Err(Error::checkpoint(&self.path, reason));
        };
        let part = &mut self.parts[part];
        if tensor.shape != shape {
            let reason = format!(" has shape {:?}; expected {shape:?}", tensor.shape);
            return Err(refuse(part.path(), &gguf_name, &reason));
        }
        let bytes = part.read(&tensor)?;
        Ok(TakenTensor { path: part.path().into(), gguf_name, stored: tensor.stored, bytes })
    }
}

impl TakenTensor {
    fn refuse(&self, reason: &str) -> Error {
        refuse(&self.path, &self.gguf_name, reason)
    }
}

fn refuse(path: &Path, name: &str, reason: &str) -> Error {
    Error::checkpoint(path, format!("tensor `{name}`{reason}"))
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    /// The expected numbers are those of Python's `gguf` package (`tools/make_gguf_golden.py`).
    #[test]
    fn blocks_of_every_type_have_the_numbers_of_the_gguf_package() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let bytes = std::fs::read(golden.join("types.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let mut file = Gguf::open(&golden.join("types.gguf")).unwrap();
        assert_eq!(expected.len(), 14);
        for (name, expected) in expected.iter() {
            let shape: [usize; 2] = expected.shape().try_into().unwrap();
            let matrix = file.matrix(name, shape).unwrap();
            let rows = (0..shape[0]).flat_map(|row| matrix.row(row));
            let numbers = expected.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
            for (i, (found, expected)) in rows.zip(numbers).enumerate() {
                let close = (found - expected).abs() <= 1e-6 * expected.abs() + 1e-9;
                assert!(close, "{name}, number {i}: {found}; expected {expected}");
            }
        }
        file.finish().unwrap();
    }
}
