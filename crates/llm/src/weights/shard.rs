//! One safetensors file, of which tensors are read one by one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor, WithDType};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::{Error, Result};

/// An open file whose header is consistent with its length.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    file: File,
    /// Where the first tensor begins.
    start: u64,
    names: Vec<String>,
    metadata: Metadata,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::file(path, source);
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let not_whole =
            |why: String| Error::checkpoint(path, format!("not a whole safetensors file: {why}"));
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|error| not_whole(error.to_string()))?;
        let header = u64::from_le_bytes(prefix);
        if header > length - 8 {
            return Err(not_whole(format!("its header has {header} bytes, the file {length}")));
        }
        let mut text = vec![0; header as usize];
        file.read_exact(&mut text).map_err(failed)?;
        let metadata: Metadata =
            serde_json::from_slice(&text).map_err(|error| not_whole(error.to_string()))?;
        let start = 8 + header;
        let expected = start + metadata.data_len() as u64;
        if expected != length {
            return Err(not_whole(format!("its tensors end at byte {expected}, it at {length}")));
        }
        Ok(Self { path: path.into(), file, start, names: metadata.offset_keys(), metadata })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Bytes that a tensor takes once it is read, 0 if it is not there.
    pub(super) fn bytes_in_memory(&self, name: &str) -> u64 {
        let Some(info) = self.metadata.info(name) else { return 0 };
        let count: u64 = info.shape.iter().map(|&size| size as u64).product();
        count * if stays_bf16(info) { 2 } else { 4 }
    }

    /// Reads a tensor of that shape: a matrix that is stored in bf16 as it is, any other in f32.
    /// Refuses numbers that are not finite.
    pub(super) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let Some(info) = self.metadata.info(name).cloned() else {
            return Err(Error::checkpoint(&self.path, format!("no tensor `{name}`")));
        };
        if info.shape != shape {
            let found = &info.shape;
            let reason = format!("tensor `{name}` has shape {found:?}; expected {shape:?}");
            return Err(Error::checkpoint(&self.path, reason));
        }
        let bytes = self.bytes(&info).map_err(|source| Error::file(&self.path, source))?;
        tensor(&info, &bytes)
            .map_err(|reason| Error::checkpoint(&self.path, format!("tensor `{name}`{reason}")))
    }

    fn bytes(&mut self, info: &TensorInfo) -> std::io::Result<Vec<u8>> {
        let (first, end) = info.data_offsets;
        self.file.seek(SeekFrom::Start(self.start + first as u64))?;
        let mut bytes = vec![0; end - first];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Whether a tensor is in memory what it is in the file. Matrices are most of a model, and a decoded
/// token reads all of them; what has one dimension, norms and biases, is small.
fn stays_bf16(info: &TensorInfo) -> bool {
    info.dtype == Dtype::BF16 && info.shape.len() == 2
}

/// The tensor of these bytes, or what is wrong with it.
fn tensor(info: &TensorInfo, bytes: &[u8]) -> Result<Tensor, String> {
    let shape = info.shape.as_slice();
    let tensor = if stays_bf16(info) {
        let numbers = bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b));
        Tensor::from_vec(finite(numbers.collect())?, shape, &Device::Cpu)
    } else {
        Tensor::from_vec(finite(in_f32(info.dtype, bytes)?)?, shape, &Device::Cpu)
    };
    tensor.map_err(|error| format!(": {error}"))
}

/// Numbers, if all are finite.
fn finite<T: WithDType>(numbers: Vec<T>) -> Result<Vec<T>, String> {
    match numbers.iter().position(|x| !x.to_f64().is_finite()) {
        None => Ok(numbers),
        Some(i) => Err(format!(": number {i} is {}; expected finite numbers", numbers[i])),
    }
}

/// Numbers in f32, whatever they are stored as.
fn in_f32(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>, String> {
    match dtype {
        Dtype::F32 => Ok(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        Dtype::F16 => {
            Ok(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect())
        }
        Dtype::BF16 => {
            Ok(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect())
        }
        other => Err(format!(" is {other:?}; expected F32, F16 or BF16")),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    #[test]
    fn what_a_tensor_takes_in_memory_is_foretold() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        for (case, matrices) in
            [("llama3", DType::BF16), ("mistral", DType::F32), ("qwen3", DType::F32)]
        {
            let mut shard = Shard::open(&golden.join(case).join("model.safetensors")).unwrap();
            for name in shard.names.clone() {
                let shape = shard.metadata.info(&name).unwrap().shape.clone();
                let tensor = shard.read(&name, &shape).unwrap();
                let dtype = if shape.len() == 2 { matrices } else { DType::F32 };
                assert_eq!(tensor.dtype(), dtype, "{case}: {name}");
                let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
                assert_eq!(shard.bytes_in_memory(&name), bytes as u64, "{case}: {name}");
            }
            assert_eq!(shard.bytes_in_memory("another"), 0);
        }
    }
}
