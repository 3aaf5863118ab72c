//! Safetensors files that selectors read when they are built. The header is checked, and only the
//! requested rows are read.

use std::cell::RefCell;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

/// An open safetensors file. Errors name the tensor; [`TensorFile::named`] adds the file's name.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: RefCell<File>,
    data_start: u64,
    header: Metadata,
}

impl TensorFile {
    /// Opens a file whose metadata must have the given `format`.
    ///
    /// # Errors
    /// The file's name and a reason: the file cannot be read, is not a safetensors file, or has
    /// another format.
    pub fn open(path: &Path, format: &str) -> Result<Self, String> {
        let read = || -> Result<(File, u64, Metadata), String> {
            let mut file = File::open(path).map_err(|error| error.to_string())?;
            let (data_start, header) = read_header(&mut file)?;
            check_format(&header, format)?;
            Ok((file, data_start, header))
        };
        let (file, data_start, header) =
            read().map_err(|reason| format!("{}: {reason}", path.display()))?;
        Ok(Self { path: path.into(), file: RefCell::new(file), data_start, header })
    }

    /// Prefixes a reason with the file's name.
    pub fn named(&self, reason: &str) -> String {
        format!("{}: {reason}", self.path.display())
    }

    /// Value of `key` in the metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Header entry of a tensor that may be missing.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.header.info(name)
    }

    /// Header entry of a tensor that must exist.
    ///
    /// # Errors
    /// A message with the name of the missing tensor.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, String> {
        self.find(name).ok_or_else(|| format!("there is no `{name}`"))
    }

    /// Reads one row, by the first index, of a tensor of f32, f16 or bf16.
    ///
    /// # Errors
    /// The tensor's name and a reason: it is missing or cannot be read, has another type, or has a
    /// number that is not finite.
    pub fn row(&self, name: &str, row: usize) -> Result<Vec<f32>, String> {
        let info = self.info(name)?;
        let (start, end) = info.data_offsets;
        let size = (end - start) / info.shape[0];
        let mut bytes = vec![0; size];
        let place = self.data_start + (start + row * size) as u64;
        let mut file = self.file.borrow_mut();
        file.seek(SeekFrom::Start(place))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|error| format!("`{name}` cannot be read: {error}"))?;
        let numbers = widen(&bytes, info.dtype)
            .ok_or_else(|| format!("`{name}` is {:?}: expected F32, F16 or BF16", info.dtype))?;
        match numbers.iter().find(|x| !x.is_finite()) {
            Some(x) => Err(format!("`{name}` has {x} in row {row}: expected finite numbers")),
            None => Ok(numbers),
        }
    }
}

/// Message about a tensor whose shape differs from the `expected` one.
pub fn mismatch(name: &str, info: &TensorInfo, expected: &str) -> String {
    format!("`{name}` is {:?}: expected {expected}", info.shape)
}

/// Reads the position of the data and the header.
fn read_header(file: &mut File) -> Result<(u64, Metadata), String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => "not a safetensors file: too short".to_owned(),
        _ => error.to_string(),
    })?;
    let size = u64::from_le_bytes(size);
    if size > length.saturating_sub(8) {
        return Err("not a safetensors file: its header is longer than the file".into());
    }
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(|error| error.to_string())?;
    let header: Metadata = serde_json::from_slice(&header)
        .map_err(|error| format!("not a safetensors file: {error}"))?;
    if (8 + size).saturating_add(header.data_len() as u64) > length {
        return Err("the file is cut short".into());
    }
    Ok((8 + size, header))
}

fn check_format(header: &Metadata, expected: &str) -> Result<(), String> {
    let format = header.metadata().as_ref().and_then(|metadata| metadata.get("format"));
    if format.is_some_and(|format| format == expected) {
        return Ok(());
    }
    let found = format.map_or("missing".into(), |format| format!("`{format}`"));
    Err(format!("the metadata's format is {found}: expected `{expected}`"))
}

/// Converts little-endian numbers of F32, F16 or BF16 to f32; `None` for other types.
fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks().0.iter();
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        Dtype::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
        _ => return None,
    })
}
