//! Models in GGUF, the single-file format of llama.cpp: dimensions, tokenizer, tensors.

mod config;
mod header;
mod names;
pub(crate) mod tokenizer;
mod types;
mod value;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::gguf_file::{TensorInfo, Value};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use half::bf16;

use crate::config::Config;
use crate::files::refuse_pointer;
use crate::matrix::Matrix;
use crate::packed::{PackedMatrix, QuantFormat};
use crate::weights::number::finite;
use crate::{Error, Result};

use header::GgufHeader;

/// Tensor of the divisors of Llama 3's rotary frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

impl Config {
    /// Reads the configuration of a GGUF file.
    pub(crate) fn from_gguf(path: &Path) -> Result<Self> {
        let file = Gguf::open(path)?;
        config::config(&file.metadata, |name| file.has(name))
            .map_err(|reason| Error::checkpoint(path, reason))
    }
}

/// Open file, and its tensors that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    file: File,
    /// Byte at which the first tensor begins.
    start: u64,
    pub(crate) metadata: HashMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Numbers of query heads and KV heads, if their rows are in interleaved rotary order.
    rotary_heads: Option<(usize, usize)>,
}

impl Gguf {
    /// Reads the header, and checks that every tensor is within the file, is aligned, and does not
    /// overlap another.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        refuse_pointer(path)?;
        let file = File::open(path).map_err(|source| Error::file(path, source))?;
        let length = file.metadata().map_err(|source| Error::file(path, source))?.len();
        let refuse = |reason| Error::checkpoint(path, reason);
        let header = GgufHeader::read(BufReader::new(&file), length).map_err(refuse)?;
        check_ranges(&header, length).map_err(refuse)?;
        Ok(Self {
            path: path.into(),
            file,
            start: header.start,
            rotary_heads: config::interleaved_heads(&header.metadata),
            metadata: header.metadata,
            tensors: header.tensors.into_iter().collect(),
        })
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a tensor of this Hugging Face name exists and has not been taken yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(&names::find_gguf_name(name))
    }

    /// Reads a matrix of this shape, in the number type in which it is fastest to multiply.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let (gguf_name, dtype, mut bytes) = self.take(name, &shape)?;
        if let Some(heads) = self.interleaved_heads(name) {
            bytes = deinterleave(&bytes, shape[0], heads);
        }
        matrix(dtype, &bytes, shape).map_err(|reason| self.refuse(&gguf_name, &reason))
    }

    /// Reads `count` matrices of this shape, which one tensor stores one after the other.
    pub(crate) fn matrices(
        &mut self,
        name: &str,
        count: usize,
        shape: [usize; 2],
    ) -> Result<Vec<Matrix>> {
        let (gguf_name, dtype, bytes) = self.take(name, &[count, shape[0], shape[1]])?;
        let parts = bytes.chunks_exact(bytes.len() / count);
        let matrices = parts.map(|bytes| matrix(dtype, bytes, shape));
        matrices.collect::<Result<_, _>>().map_err(|reason| self.refuse(&gguf_name, &reason))
    }

    /// Reads a vector of `size` elements.
    pub(crate) fn vector(&mut self, name: &str, size: usize) -> Result<Vec<f32>> {
        let (gguf_name, dtype, bytes) = self.take(name, &[size])?;
        let numbers = numbers(dtype, &bytes, &[size]);
        let numbers = numbers.map_err(|reason| self.refuse(&gguf_name, &reason))?;
        Ok(match self.interleaved_heads(name) {
            Some(heads) => deinterleave(&numbers, size, heads),
            None => numbers,
        })
    }

    /// Number of heads that a tensor's rows belong to, if the rows are in interleaved rotary order.
    fn interleaved_heads(&self, name: &str) -> Option<usize> {
        let heads = self.rotary_heads?;
        match names::part(name)? {
            names::QUERY => Some(heads.0),
            names::KEY => Some(heads.1),
            _ => None,
        }
    }

    /// Reads the divisors of the rotary frequencies, if the file has them.
    pub(crate) fn rope_factors(&mut self, size: usize) -> Result<Option<Vec<f32>>> {
        if !self.tensors.contains_key(ROPE_FACTORS) {
            return Ok(None);
        }
        let factors = self.vector(ROPE_FACTORS, size)?;
        match factors.iter().find(|factor| **factor <= 0.0) {
            None => Ok(Some(factors)),
            Some(factor) => {
                Err(self.refuse(ROPE_FACTORS, &format!(" has {factor}; expected positive numbers")))
            }
        }
    }

    /// Bytes in memory of the tensors that have not been taken yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.values().map(bytes_in_memory).sum()
    }

    /// Refuses tensors that have not been taken.
    pub(crate) fn finish(self) -> Result<()> {
        match self.tensors.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.refuse(name, " has no place in a model of this architecture")),
        }
    }

    /// Takes the tensor of a Hugging Face name; returns its GGUF name, number type and bytes.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<(String, GgmlDType, Vec<u8>)> {
        let gguf_name = names::find_gguf_name(name);
        let Some(info) = self.tensors.remove(&gguf_name) else {
            let reason = format!("no tensor `{gguf_name}`; expected one of shape {shape:?}");
            return Err(Error::checkpoint(&self.path, reason));
        };
        if info.shape.dims() != shape {
            let found = info.shape.dims();
            return Err(
                self.refuse(&gguf_name, &format!(" has shape {found:?}; expected {shape:?}"))
            );
        }
        let bytes = self.read(&info).map_err(|source| Error::file(&self.path, source))?;
        Ok((gguf_name, info.ggml_dtype, bytes))
    }

    fn read(&mut self, info: &TensorInfo) -> std::io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(self.start + info.offset))?;
        let mut read = vec![0; bytes(info).unwrap_or(0) as usize];
        self.file.read_exact(&mut read)?;
        Ok(read)
    }

    fn refuse(&self, name: &str, reason: &str) -> Error {
        Error::checkpoint(&self.path, format!("tensor `{name}`{reason}"))
    }
}

/// Refuses tensors that are misaligned, overlap, or do not lie completely within a file of `length`
/// bytes. Sizes in the header may be arbitrarily large.
fn check_ranges(header: &GgufHeader, length: u64) -> Result<(), String> {
    let mut places = Vec::new();
    for (name, info) in &header.tensors {
        let place = find_range(info, header, length)
            .map_err(|reason| format!("tensor `{name}`{reason}"))?;
        places.push((place, name));
    }
    places.sort_by_key(|(place, _)| (place.start, place.end));
    for pair in places.windows(2) {
        let [(first, name), (second, other)] = pair else { continue };
        if first.end > second.start {
            return Err(format!(
                "tensor `{name}` has bytes {} to {} of the file and tensor `{other}` bytes {} to \
                 {}; expected tensors that do not overlap",
                first.start, first.end, second.start, second.end
            ));
        }
    }
    Ok(())
}

/// Byte range of a tensor in a file of `length` bytes.
fn find_range(info: &TensorInfo, header: &GgufHeader, length: u64) -> Result<Range<u64>, String> {
    let size = bytes(info).ok_or_else(|| {
        let (shape, block) = (info.shape.dims(), info.ggml_dtype.block_size());
        format!(
            " has shape {shape:?}; expected rows of a multiple of {block} elements, and fewer \
             elements in all"
        )
    })?;
    let GgufHeader { start, alignment, .. } = *header;
    if !info.offset.is_multiple_of(alignment) {
        return Err(format!(
            " begins {} bytes after the header; expected a multiple of the alignment, {alignment}",
            info.offset
        ));
    }
    let first = start.checked_add(info.offset);
    match first.and_then(|first| Some(first..first.checked_add(size)?)) {
        Some(place) if place.end <= length => Ok(place),
        _ => Err(format!(
            " has {size} bytes from byte {} of {length}; the file is cut",
            start.saturating_add(info.offset)
        )),
    }
}

/// Bytes of a tensor in its file; `None` if its rows are not whole blocks, or the number overflows.
fn bytes(info: &TensorInfo) -> Option<u64> {
    let (dims, dtype) = (info.shape.dims(), info.ggml_dtype);
    let whole = dims.last().is_some_and(|row| row.is_multiple_of(dtype.block_size()));
    let count = dims.iter().try_fold(1_u64, |all, &size| all.checked_mul(size as u64))?;
    let size = (count / dtype.block_size() as u64).checked_mul(dtype.type_size() as u64)?;
    whole.then_some(size)
}

fn bytes_in_memory(info: &TensorInfo) -> u64 {
    let count: u64 = info.shape.dims().iter().map(|&size| size as u64).product();
    match (info.ggml_dtype, info.shape.rank()) {
        (GgmlDType::BF16, 2 | 3) => 2 * count,
        (dtype, 2 | 3) if let Some(format) = QuantFormat::from_type(dtype) => {
            format.memory_bytes(info.shape.dims())
        }
        _ => 4 * count,
    }
}

/// Reorders the rows of heads from pairs side by side, the interleaved rotary order, to the first
/// elements of all pairs followed by the second ones, the order of this crate.
fn deinterleave<T: Copy>(rows: &[T], count: usize, heads: usize) -> Vec<T> {
    let (size, head_dim) = (rows.len() / count, count / heads);
    let place = |row: usize| {
        let (head, i) = (row / head_dim, row % head_dim);
        head * head_dim + 2 * (i % (head_dim / 2)) + i / (head_dim / 2)
    };
    (0..count).flat_map(|row| &rows[place(row) * size..(place(row) + 1) * size]).copied().collect()
}

fn matrix(dtype: GgmlDType, bytes: &[u8], shape: [usize; 2]) -> Result<Matrix, String> {
    if let Some(format) = QuantFormat::from_type(dtype) {
        let packed = PackedMatrix::new(format, bytes, shape).map_err(|block| {
            format!(": the numbers of block {block} are not finite; expected finite ones")
        })?;
        return Ok(Matrix::packed(packed));
    }
    match dtype {
        GgmlDType::BF16 => {
            let numbers = bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b));
            Ok(Matrix::bf16(finite(numbers.collect())?, shape))
        }
        _ => Ok(Matrix::f32(numbers(dtype, bytes, &shape)?, shape)),
    }
}

/// Converts stored numbers to f32, and checks that all are finite.
fn numbers(dtype: GgmlDType, bytes: &[u8], shape: &[usize]) -> Result<Vec<f32>, String> {
    let numbers = QStorage::from_data(bytes.into(), &Device::Cpu, dtype)
        .and_then(|storage| QTensor::new(storage, shape)?.dequantize(&Device::Cpu))
        .and_then(|tensor| tensor.flatten_all()?.to_vec1());
    finite(numbers.map_err(|error| format!(": {error}"))?)
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
        assert_eq!(expected.len(), 11);
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

    #[test]
    fn interleaved_pairs_become_halves() {
        // Two heads of three pairs.
        let rows: Vec<u8> = (0..12).collect();
        assert_eq!(deinterleave(&rows, 12, 2), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
