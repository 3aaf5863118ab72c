//! One safetensors file, whose tensors are read one by one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::number::finite;
use crate::family::JoinedColumns;
use crate::files::refuse_pointer;
use crate::matrix::Matrix;
use crate::{Error, Result};

/// Open file whose header is consistent with its length.
#[derive(Debug)]
pub(super) struct WeightShard {
    path: PathBuf,
    file: File,
    /// Byte at which the first tensor begins.
    start: u64,
    names: Vec<String>,
    metadata: Metadata,
}

impl WeightShard {
    pub(super) fn open(path: &Path) -> Result<Self> {
        refuse_pointer(path)?;
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

    /// Bytes that a tensor takes in memory; 0 if the file lacks it.
    pub(super) fn bytes_in_memory(&self, name: &str) -> u64 {
        let Some(info) = self.metadata.info(name) else { return 0 };
        let count: u64 = info.shape.iter().map(|&size| size as u64).product();
        count
            * match info.dtype {
                Dtype::U8 => 1,
                _ if stays_bf16(info) => 2,
                _ => 4,
            }
    }

    /// Reads a matrix of this shape: in bf16 if it is stored in bf16, otherwise in f32. Refuses
    /// numbers that are not finite.
    pub(super) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let mut matrices = self.matrices(name, shape, &[shape[0]])?;
        Ok(matrices.pop().expect("one matrix"))
    }

    /// Reads matrices of these numbers of rows from a tensor of this shape, like
    /// [`matrix`](Self::matrix).
    pub(super) fn matrices(
        &mut self,
        name: &str,
        shape: [usize; 2],
        rows: &[usize],
    ) -> Result<Vec<Matrix>> {
        let (info, bytes) = self.find(name, &shape)?;
        let row_bytes = bytes.len() / shape[0];
        let mut rest = bytes.as_slice();
        let read = |&rows: &usize| {
            let (part, after) = rest.split_at(rows * row_bytes);
            rest = after;
            read_matrix(&info, part, [rows, shape[1]])
        };
        let matrices: Result<Vec<_>, String> = rows.iter().map(read).collect();
        matrices.map_err(|reason| self.refuse(name, &reason))
    }

    /// Reads the matrices `[outputs, inputs]` of a tensor `[count, inputs, outputs]`, each of which
    /// has the columns of `N` matrices.
    pub(super) fn transposed_matrices<const N: usize>(
        &mut self,
        name: &str,
        shape: [usize; 3],
        columns: JoinedColumns,
    ) -> Result<Vec<[Matrix; N]>> {
        let (info, bytes) = self.find(name, &shape)?;
        let [_, inputs, outputs] = shape;
        let size = bytes.len() / shape.iter().product::<usize>();
        let mut all = Vec::new();
        for stored in bytes.chunks_exact(inputs * outputs * size) {
            let select = |part: usize| {
                let mut selected = Vec::with_capacity(stored.len() / N);
                let (first, step) = match columns {
                    JoinedColumns::Alternating => (part, N),
                    JoinedColumns::Halves => (part * (outputs / N), 1),
                };
                for output in (first..outputs).step_by(step).take(outputs / N) {
                    for input in 0..inputs {
                        let place = (input * outputs + output) * size;
                        selected.extend_from_slice(&stored[place..place + size]);
                    }
                }
                read_matrix(&info, &selected, [outputs / N, inputs])
            };
            let mut parts = Vec::with_capacity(N);
            for part in 0..N {
                parts.push(select(part).map_err(|reason| self.refuse(name, &reason))?);
            }
            all.push(parts.try_into().expect("N matrices"));
        }
        Ok(all)
    }

    /// Reads the numbers of a tensor of this shape. Refuses numbers that are not finite.
    pub(super) fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (info, bytes) = self.find(name, shape)?;
        convert_to_f32(info.dtype, &bytes).map_err(|reason| self.refuse(name, &reason))
    }

    /// Reads a tensor of bytes of this shape.
    pub(super) fn byte_tensor(&mut self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let (info, bytes) = self.find(name, shape)?;
        match info.dtype {
            Dtype::U8 => Ok(bytes),
            other => Err(self.refuse(name, &format!(" is {other:?}; expected U8"))),
        }
    }

    fn find(&mut self, name: &str, shape: &[usize]) -> Result<(TensorInfo, Vec<u8>)> {
        let Some(info) = self.metadata.info(name).cloned() else {
            return Err(Error::checkpoint(&self.path, format!("no tensor `{name}`")));
        };
        if info.shape != shape {
            let found = &info.shape;
            return Err(self.refuse(name, &format!(" has shape {found:?}; expected {shape:?}")));
        }
        let bytes = self.bytes(&info).map_err(|source| Error::file(&self.path, source))?;
        Ok((info, bytes))
    }

    pub(super) fn refuse(&self, name: &str, reason: &str) -> Error {
        Error::checkpoint(&self.path, format!("tensor `{name}`{reason}"))
    }

    fn bytes(&mut self, info: &TensorInfo) -> std::io::Result<Vec<u8>> {
        let (first, end) = info.data_offsets;
        self.file.seek(SeekFrom::Start(self.start + first as u64))?;
        let mut bytes = vec![0; end - first];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Converts the bytes of a matrix: to bf16 if it is stored in bf16, otherwise to f32.
fn read_matrix(info: &TensorInfo, bytes: &[u8], shape: [usize; 2]) -> Result<Matrix, String> {
    if stays_bf16(info) {
        let numbers = bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b));
        return Ok(Matrix::bf16(finite(numbers.collect())?, shape));
    }
    Ok(Matrix::f32(convert_to_f32(info.dtype, bytes)?, shape))
}

/// Returns true if a tensor stays in bf16 in memory. Matrices are most of a model, and each decode
/// step reads all of them; tensors of one dimension, norms and biases, are small.
fn stays_bf16(info: &TensorInfo) -> bool {
    info.dtype == Dtype::BF16 && info.shape.len() >= 2
}

/// Converts stored numbers to f32, and checks that all are finite.
fn convert_to_f32(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>, String> {
    finite(match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => {
            bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect()
        }
        other => return Err(format!(" is {other:?}; expected F32, F16 or BF16")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_tensors_is_predicted() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        for (case, bytes) in [("llama3", 2), ("mistral", 4), ("qwen3", 4)] {
            let mut shard =
                WeightShard::open(&golden.join(case).join("model.safetensors")).unwrap();
            for name in shard.names.clone() {
                let found = match *shard.metadata.info(&name).unwrap().shape {
                    [rows, columns] => {
                        let matrix = shard.matrix(&name, [rows, columns]).unwrap();
                        assert_eq!(
                            matrix.bytes(),
                            bytes * (rows * columns) as u64,
                            "{case}: {name}"
                        );
                        matrix.bytes()
                    }
                    [size] => 4 * shard.numbers(&name, &[size]).unwrap().len() as u64,
                    _ => panic!("{name}"),
                };
                assert_eq!(shard.bytes_in_memory(&name), found, "{case}: {name}");
            }
            assert_eq!(shard.bytes_in_memory("another"), 0);
        }
    }
}
