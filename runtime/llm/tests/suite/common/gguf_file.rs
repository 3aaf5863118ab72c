//! Writer of GGUF files whose tensors are bytes of any type, for types that candle lacks.

use std::fs;
use std::path::Path;

/// Value of a metadata key.
pub(crate) enum MetadataValue {
    U32(u32),
    F32(f32),
    Text(&'static str),
}

/// Tensor as it is stored; the last dimension of `shape` is contiguous.
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    /// Number of the type in GGUF.
    pub(crate) type_number: u32,
    pub(crate) bytes: Vec<u8>,
}

const ALIGNMENT: usize = 32;

/// Writes a file of version 3.
pub(crate) fn write_gguf(
    path: &Path,
    metadata: &[(&str, MetadataValue)],
    tensors: &[StoredTensor],
) {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut file, key);
        match value {
            MetadataValue::U32(number) => {
                file.extend(4_u32.to_le_bytes());
                file.extend(number.to_le_bytes());
            }
            MetadataValue::F32(number) => {
                file.extend(6_u32.to_le_bytes());
                file.extend(number.to_le_bytes());
            }
            MetadataValue::Text(text) => {
                file.extend(8_u32.to_le_bytes());
                put_text(&mut file, text);
            }
        }
    }
    let mut offset = 0;
    for tensor in tensors {
        put_text(&mut file, &tensor.name);
        file.extend((tensor.shape.len() as u32).to_le_bytes());
        for size in tensor.shape.iter().rev() {
            file.extend((*size as u64).to_le_bytes());
        }
        file.extend(tensor.type_number.to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(&tensor.bytes);
    }
    fs::write(path, file).unwrap();
}

fn put_text(file: &mut Vec<u8>, text: &str) {
    file.extend((text.len() as u64).to_le_bytes());
    file.extend(text.as_bytes());
}
