//! Header of a GGUF file: its metadata, and the position of each tensor.
//!
//! candle can also read headers, but it keeps the last of two tensors or keys of one name, names no
//! tensor in its errors, and divides by an alignment of 0.

use std::collections::HashMap;
use std::io::Read;

use candle_core::quantized::gguf_file::Value;

use super::tensor::GgufTensor;
use super::types::find_type;
use super::value::{quoted, typed, whole_number};

const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;

/// Largest number of dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 4;

/// Type number of arrays.
const ARRAY: u32 = 9;

#[derive(Debug)]
pub(super) struct GgufHeader {
    pub(super) metadata: HashMap<String, Value>,
    /// Tensors in the order of the file; their names differ.
    pub(super) tensors: Vec<(String, GgufTensor)>,
    /// Byte at which the data of tensors begin.
    pub(super) start: u64,
    /// Alignment of every tensor's offset, a power of 2.
    pub(super) alignment: u64,
}

impl GgufHeader {
    /// Reads the header of a file of `length` bytes. Never reserves more memory than a small
    /// multiple of this length, whatever the header claims.
    pub(super) fn read(input: impl Read, length: u64) -> Result<Self, String> {
        let mut reader = HeaderReader { input, left: length, wide: true };
        let not_whole = |reason| format!("not a whole GGUF file: {reason}");
        let (tensor_count, key_count) = reader.counts()?;
        let mut metadata = HashMap::new();
        let mut places = HashMap::new();
        for place in 0..key_count {
            let (key, value) = reader.pair().map_err(not_whole)?;
            if let Some(first) = places.insert(key.clone(), place) {
                let key = quoted(&key);
                return Err(format!(
                    "metadata keys {first} and {place} are both {key}; expected different keys"
                ));
            }
            metadata.insert(key, value);
        }
        let mut tensors = Vec::new();
        let mut places = HashMap::new();
        for place in 0..tensor_count {
            let (name, info) = reader.tensor(place)?;
            if let Some(first) = places.insert(name.clone(), place) {
                let name = quoted(&name);
                return Err(format!(
                    "tensors {first} and {place} are both named {name}; expected different names"
                ));
            }
            tensors.push((name, info));
        }
        let alignment = read_alignment(&metadata)?;
        let end = length - reader.left;
        let start = end.checked_next_multiple_of(alignment);
        let start = start.ok_or_else(|| not_whole("its alignment is beyond its end".into()))?;
        Ok(Self { metadata, tensors, start, alignment })
    }
}

fn read_alignment(metadata: &HashMap<String, Value>) -> Result<u64, String> {
    let Some(value) = metadata.get(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    let number = whole_number(value).and_then(|number| u64::try_from(number).ok());
    number
        .filter(|number| number.is_power_of_two())
        .ok_or_else(|| format!("`{ALIGNMENT}` is {}; expected a power of 2", typed(value)))
}

/// Reader of the bytes of a header.
struct HeaderReader<R> {
    input: R,
    /// Number of bytes of the file that have not been read.
    left: u64,
    /// True if lengths have 64 bits, as they have since version 2.
    wide: bool,
}

impl<R: Read> HeaderReader<R> {
    /// Reads the beginning up to the first key: the numbers of tensors and keys.
    fn counts(&mut self) -> Result<(u64, u64), String> {
        let not_whole = |reason| format!("not a whole GGUF file: {reason}");
        let magic: [u8; 4] = self.bytes().map_err(not_whole)?;
        if &magic != b"GGUF" {
            let found = String::from_utf8_lossy(&magic);
            return Err(format!("not a GGUF file: it begins with {found:?}; expected \"GGUF\""));
        }
        let version = self.u32().map_err(not_whole)?;
        if !matches!(version, 1..=3) {
            let swapped = matches!(version.swap_bytes(), 1..=3);
            let order = if swapped { " (of a big-endian machine)" } else { "" };
            return Err(format!(
                "a GGUF file of version {version}{order}; expected version 1, 2 or 3, little-endian"
            ));
        }
        self.wide = version > 1;
        let tensors = self.length().map_err(not_whole)?;
        Ok((tensors, self.length().map_err(not_whole)?))
    }

    /// Reads a key of the metadata and its value.
    fn pair(&mut self) -> Result<(String, Value), String> {
        let key = self.text()?;
        let kind = self.u32()?;
        let value = if kind == ARRAY { self.array() } else { self.value(kind) };
        let value = value.map_err(|reason| format!("key {}: {reason}", quoted(&key)))?;
        Ok((key, value))
    }

    fn value(&mut self, kind: u32) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.bytes()?)),
            1 => Value::I8(i8::from_le_bytes(self.bytes()?)),
            2 => Value::U16(u16::from_le_bytes(self.bytes()?)),
            3 => Value::I16(i16::from_le_bytes(self.bytes()?)),
            4 => Value::U32(self.u32()?),
            5 => Value::I32(i32::from_le_bytes(self.bytes()?)),
            6 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            7 => match self.bytes()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(format!("a bool of {other}; expected 0 or 1")),
            },
            8 => Value::String(self.text()?),
            ARRAY => return Err("an array of arrays, which is not supported".into()),
            10 => Value::U64(self.u64()?),
            11 => Value::I64(i64::from_le_bytes(self.bytes()?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes()?)),
            _ => return Err(format!("a value of type {kind}; expected 0 to 12")),
        })
    }

    fn array(&mut self) -> Result<Value, String> {
        let kind = self.u32()?;
        let count = self.length()?;
        // Every item has at least one byte, so the bytes of the file bound the number of items.
        if count > self.left {
            let left = self.left;
            return Err(format!("an array of {count} items, but the file has {left} more bytes"));
        }
        (0..count).map(|_| self.value(kind)).collect::<Result<_, _>>().map(Value::Array)
    }

    /// Reads the description of the file's tensor number `place`.
    fn tensor(&mut self, place: u64) -> Result<(String, GgufTensor), String> {
        let not_whole = |reason| format!("not a whole GGUF file: tensor {place}: {reason}");
        let name = self.text().map_err(not_whole)?;
        let count = self.u32().map_err(not_whole)?;
        if count > MOST_DIMENSIONS {
            let name = quoted(&name);
            return Err(format!(
                "tensor {name} has {count} dimensions; expected at most {MOST_DIMENSIONS}"
            ));
        }
        let dims = (0..count).map(|_| self.length().map(|size| size as usize));
        let mut shape: Vec<usize> = dims.collect::<Result<_, _>>().map_err(not_whole)?;
        shape.reverse();
        let stored = find_type(self.u32().map_err(not_whole)?)
            .map_err(|found| format!("tensor `{name}` is {found}"))?;
        let offset = self.u64().map_err(not_whole)?;
        Ok((name, GgufTensor { stored, shape, offset }))
    }

    /// Reads a length or a dimension.
    fn length(&mut self) -> Result<u64, String> {
        if self.wide { self.u64() } else { self.u32().map(u64::from) }
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Reads a text. In some files texts end with zeros, or have bytes that are not UTF-8.
    fn text(&mut self) -> Result<String, String> {
        let length = self.length()?;
        if length > self.left {
            let left = self.left;
            return Err(format!("a text of {length} bytes, but the file has {left} more"));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches('\0').to_owned())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => "it ends within its header".to_owned(),
            _ => error.to_string(),
        })?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }
}
