//! Writer of safetensors whose header has a fixed order, so that equal contents have equal bytes
//! (the library's own writer shuffles the metadata).

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::{Map, Value, json};

/// Named tensors for one file.
#[derive(Debug, Default)]
pub struct Tensors {
    header: BTreeMap<String, Value>,
    data: Vec<u8>,
}

impl Tensors {
    /// Adds a tensor from its little-endian bytes.
    pub fn push(&mut self, name: String, dtype: Dtype, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let offsets = [start, self.data.len()];
        let info =
            json!({ "dtype": format!("{dtype:?}"), "shape": shape, "data_offsets": offsets });
        self.header.insert(name, info);
    }

    /// Adds a tensor of f32.
    pub fn push_f32(&mut self, name: String, shape: &[usize], numbers: &[f32]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.push(name, Dtype::F32, shape, &bytes);
    }

    /// Returns the bytes of the file.
    pub fn into_bytes(self, metadata: BTreeMap<String, String>) -> Vec<u8> {
        let mut header = Map::new();
        header.insert("__metadata__".into(), json!(metadata));
        header.extend(self.header);
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes.extend(self.data);
        bytes
    }
}
