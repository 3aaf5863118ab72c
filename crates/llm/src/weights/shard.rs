//! One safetensors file, of which tensors are read one by one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

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

    /// Numbers of a tensor, 0 if it is not there.
    pub(super) fn count(&self, name: &str) -> u64 {
        let size = |info: &TensorInfo| info.shape.iter().map(|&size| size as u64).product();
        self.metadata.info(name).map_or(0, size)
    }

    /// Reads a tensor of that shape, in f32, and refuses numbers that are not finite.
    pub(super) fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let Some(info) = self.metadata.info(name).cloned() else {
            return Err(Error::checkpoint(&self.path, format!("no tensor `{name}`")));
        };
        if info.shape != shape {
            let found = &info.shape;
            let reason = format!("tensor `{name}` has shape {found:?}; expected {shape:?}");
            return Err(Error::checkpoint(&self.path, reason));
        }
        let bytes = self.bytes(&info).map_err(|source| Error::file(&self.path, source))?;
        let numbers = numbers(info.dtype, &bytes)
            .map_err(|reason| Error::checkpoint(&self.path, format!("tensor `{name}` {reason}")))?;
        if let Some(i) = numbers.iter().position(|x| !x.is_finite()) {
            let reason =
                format!("tensor `{name}`: number {i} is {}; expected finite numbers", numbers[i]);
            return Err(Error::checkpoint(&self.path, reason));
        }
        Ok(numbers)
    }

    fn bytes(&mut self, info: &TensorInfo) -> std::io::Result<Vec<u8>> {
        let (first, end) = info.data_offsets;
        self.file.seek(SeekFrom::Start(self.start + first as u64))?;
        let mut bytes = vec![0; end - first];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Numbers in f32, whatever they are stored as.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>, String> {
    match dtype {
        Dtype::F32 => Ok(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        Dtype::F16 => {
            Ok(bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect())
        }
        Dtype::BF16 => {
            Ok(bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect())
        }
        other => Err(format!("is {other:?}; expected F32, F16 or BF16")),
    }
}
