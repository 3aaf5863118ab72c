//! Header of a trace, which is checked before any tensor is read.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use vattention_core::{Shape, Storage};

use super::layout::{FORMAT, Layout, TraceInfo};

#[derive(Debug)]
pub(super) struct LayerTensors {
    pub(super) layout: Layout,
    pub(super) queries: StoredTensor,
    pub(super) keys: StoredTensor,
    pub(super) values: StoredTensor,
    pub(super) visible: Option<StoredTensor>,
    pub(super) prompt: Option<StoredTensor>,
    pub(super) prompt_tokens: Option<StoredTensor>,
    pub(super) classes: Option<StoredTensor>,
    pub(super) soft_cap: Option<StoredTensor>,
    pub(super) sink_logits: Option<StoredTensor>,
}

/// A tensor of the file: name, type, shape and range of bytes.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) span: Range<usize>,
}

/// Describes the first tensor that is cut by the end of the file, if the header is complete.
pub(super) fn describe_cut_tensor(bytes: &[u8]) -> Option<String> {
    let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let start = length.checked_add(8)?;
    let metadata: Metadata = serde_json::from_slice(bytes.get(8..start)?).ok()?;
    let end = |name: &String| metadata.info(name).map_or(0, |info| info.data_offsets.1);
    let cut = metadata.offset_keys().into_iter().find(|name| start + end(name) > bytes.len())?;
    let (expected, found) = (start + end(&cut), bytes.len());
    Some(format!("tensor `{cut}` ends at byte {expected}, the file at byte {found}"))
}

pub(super) fn read_info(metadata: Option<&HashMap<String, String>>) -> Result<TraceInfo, String> {
    let get = |key: &str| metadata.and_then(|metadata| metadata.get(key));
    match get("format") {
        Some(format) if format == FORMAT => {}
        Some(format) => {
            return Err(format!("metadata `format` is {format:?}; expected {FORMAT:?}"));
        }
        None => return Err(format!("no metadata `format`; expected {FORMAT:?}")),
    }
    let scale = match get("scale").map(|text| (text, text.parse::<f32>())) {
        None => None,
        Some((_, Ok(scale))) if scale.is_finite() && scale > 0.0 => Some(scale),
        Some((text, _)) => {
            return Err(format!("metadata `scale` is {text:?}; expected a positive number"));
        }
    };
    let [model, source, share] = ["model", "source", "share"].map(|key| get(key).cloned());
    Ok(TraceInfo { scale, model, source, share })
}

pub(super) fn read_layers(metadata: &Metadata) -> Result<BTreeMap<usize, LayerTensors>, String> {
    let mut found: BTreeMap<usize, BTreeMap<String, StoredTensor>> = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        let (layer, part) = parse_name(&name)?;
        let tensor = StoredTensor::new(name, info);
        found.entry(layer).or_default().insert(part, tensor);
    }
    if found.is_empty() {
        return Err("no tensors; expected `layers.0.queries` and so on".into());
    }
    found.into_iter().map(|(l, parts)| Ok((l, LayerTensors::new(l, parts)?))).collect()
}

/// Parts of a layer, in the order in which they are written.
pub(super) const PARTS: [&str; 9] = [
    "queries",
    "keys",
    "values",
    "prompt",
    "visible",
    "prompt_tokens",
    "classes",
    "soft_cap",
    "sink_logits",
];

/// Parses a tensor's name: `layers.3.keys` is `(3, "keys")`.
pub(super) fn parse_name(name: &str) -> Result<(usize, String), String> {
    let parse = || {
        let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let number: usize = layer.parse().ok().filter(|n| *n < 4096)?;
        (number.to_string() == layer && PARTS.contains(&part)).then(|| (number, part.into()))
    };
    parse().ok_or_else(|| {
        format!(
            "unknown tensor `{name}`; expected `layers.L.PART`, L from 0 to 4095, PART one of {}",
            PARTS.join(", ")
        )
    })
}

impl StoredTensor {
    fn new(name: String, info: &TensorInfo) -> Self {
        let (start, end) = info.data_offsets;
        Self { name, dtype: info.dtype, shape: info.shape.clone(), span: start..end }
    }

    /// Returns the three dimensions of a floating-point tensor.
    fn dims(&self) -> Result<[usize; 3], String> {
        if !matches!(self.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(format!(
                "tensor `{}` is {:?}; expected F32, F16 or BF16",
                self.name, self.dtype
            ));
        }
        match self.shape[..] {
            [heads, rows, dim] if heads > 0 && dim > 0 => Ok([heads, rows, dim]),
            _ => Err(format!(
                "tensor `{}` has shape {:?}; expected [heads, rows, dim], heads and dim not 0",
                self.name, self.shape
            )),
        }
    }

    /// Refuses a tensor that does not have `count` numbers of a type.
    fn expect_numbers(&self, dtype: Dtype, count: usize) -> Result<(), String> {
        if self.dtype != dtype {
            return Err(format!("tensor `{}` is {:?}; expected {dtype:?}", self.name, self.dtype));
        }
        self.expect_shape(&[count])
    }

    /// Refuses a shape that does not match the other tensors.
    fn expect_shape(&self, expected: &[usize]) -> Result<(), String> {
        if self.shape == expected {
            return Ok(());
        }
        Err(format!("tensor `{}` has shape {:?}; expected {expected:?}", self.name, self.shape))
    }
}

impl LayerTensors {
    fn new(number: usize, mut parts: BTreeMap<String, StoredTensor>) -> Result<Self, String> {
        let mut take = |part: &str| {
            let missing = || format!("no tensor `layers.{number}.{part}`");
            parts.remove(part).ok_or_else(missing)
        };
        let (queries, keys, values) = (take("queries")?, take("keys")?, take("values")?);
        let (visible, prompt) = (take("visible").ok(), take("prompt").ok());
        let (prompt_tokens, classes) = (take("prompt_tokens").ok(), take("classes").ok());
        let (soft_cap, sink_logits) = (take("soft_cap").ok(), take("sink_logits").ok());
        let [query_heads, query_count, head_dim] = queries.dims()?;
        let [kv_heads, tokens, _] = keys.dims()?;
        keys.expect_shape(&[kv_heads, tokens, head_dim])?;
        let [_, _, value_dim] = values.dims()?;
        values.expect_shape(&[kv_heads, tokens, value_dim])?;
        if values.dtype != keys.dtype {
            return Err(format!(
                "tensor `{}` is {:?}; expected {:?}, as keys",
                values.name, values.dtype, keys.dtype
            ));
        }
        if tokens == 0 {
            return Err(format!("tensor `{}` holds no tokens; expected at least 1", keys.name));
        }
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        shape.check().map_err(|error| format!("layer {number}: {error}"))?;
        for (tensor, dtype, count) in [
            (&visible, Dtype::I64, query_count),
            (&prompt_tokens, Dtype::I64, 1),
            (&classes, Dtype::U8, tokens),
            (&soft_cap, Dtype::F32, 1),
            (&sink_logits, Dtype::F32, query_heads),
        ] {
            if let Some(tensor) = tensor {
                tensor.expect_numbers(dtype, count)?;
            }
        }
        let prompt_count = match &prompt {
            None => 0,
            Some(prompt) => {
                let [_, count, _] = prompt.dims()?;
                prompt.expect_shape(&[query_heads, count.min(tokens), head_dim])?;
                count
            }
        };
        let layout = Layout {
            shape,
            tokens,
            queries: query_count,
            prompt: prompt_count,
            causal: visible.is_some(),
            classes: classes.is_some(),
            soft_cap: soft_cap.is_some(),
            sinks: sink_logits.is_some(),
            storage: storage(keys.dtype),
        };
        Ok(Self {
            layout,
            queries,
            keys,
            values,
            visible,
            prompt,
            prompt_tokens,
            classes,
            soft_cap,
            sink_logits,
        })
    }
}

fn storage(dtype: Dtype) -> Storage {
    match dtype {
        Dtype::F16 => Storage::F16,
        Dtype::BF16 => Storage::Bf16,
        _ => Storage::F32,
    }
}
