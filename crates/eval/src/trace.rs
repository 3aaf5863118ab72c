//! Captured queries, keys and values in a safetensors file.
//!
//! Per layer `l`, in f32, f16 or bf16:
//!
//! ```text
//! layers.{l}.queries  [query_heads, queries, head_dim]
//! layers.{l}.keys     [kv_heads, tokens, head_dim]
//! layers.{l}.values   [kv_heads, tokens, value_dim]
//! layers.{l}.visible  i64 [queries]                    optional: tokens that each query may see
//! layers.{l}.prompt   [query_heads, prompt, head_dim]  optional: queries of the last tokens
//! metadata            format = "vattention-trace/1", scale (optional), model, source
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use ndarray::Array3;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use vattention_core::{LARGEST, Shape, Storage};

use crate::tensors::Tensors;
use crate::{Error, Result, write_beside};

const FORMAT: &str = "vattention-trace/1";

/// A trace file, memory-mapped; layers are read when asked for.
///
/// The file must not be changed while it is open.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    map: Mmap,
    data_start: usize,
    info: TraceInfo,
    layers: BTreeMap<usize, LayerTensors>,
}

/// What a trace says about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceInfo {
    /// What queries are multiplied by; `None` is `1 / √head_dim`.
    pub scale: Option<f32>,
    /// The model it was captured from.
    pub model: Option<String>,
    /// The text it was captured on.
    pub source: Option<String>,
}

/// One layer's dimensions, known without reading its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Heads and their dimensions.
    pub shape: Shape,
    /// Tokens in the cache.
    pub tokens: usize,
    /// Queries.
    pub queries: usize,
    /// Prompt queries, 0 if there are none.
    pub prompt: usize,
    /// Whether each query has its own limit of what it sees.
    pub causal: bool,
    /// How keys and values are stored.
    pub storage: Storage,
}

/// One layer's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// `[query_heads, queries, head_dim]`, not scaled.
    pub queries: Array3<f32>,
    /// `[kv_heads, tokens, head_dim]`.
    pub keys: Array3<f32>,
    /// `[kv_heads, tokens, value_dim]`.
    pub values: Array3<f32>,
    /// Tokens that each query sees, `[queries]`; `None`: all.
    pub visible: Option<Vec<usize>>,
    /// Queries of the last tokens, `[query_heads, prompt, head_dim]`, not scaled.
    pub prompt: Option<Array3<f32>>,
}

impl Layer {
    /// Heads and their dimensions.
    pub fn shape(&self) -> Shape {
        let (query_heads, _, head_dim) = self.queries.dim();
        let (kv_heads, _, value_dim) = self.values.dim();
        Shape { query_heads, kv_heads, head_dim, value_dim }
    }
}

#[derive(Debug)]
struct LayerTensors {
    layout: Layout,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Option<Tensor>,
    prompt: Option<Tensor>,
}

/// A tensor of the file: its name, type, shape and bytes.
#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    span: Range<usize>,
}

impl Trace {
    /// Opens a trace and checks everything but its numbers.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, [`Error::Trace`] if it is damaged or inconsistent.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::file(path, source))?;
        let is_file = file.metadata().map_err(|source| Error::file(path, source))?.is_file();
        if !is_file {
            return Err(Error::trace(path, "expected a file"));
        }
        // SAFETY: the map is only read, as bytes. A file that another process truncates meanwhile
        // ends this one with a signal, which the type's documentation rules out.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|source| Error::file(path, source))?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            let cut = cut_tensor(&map).unwrap_or_else(|| error.to_string());
            Error::trace(path, format!("not a whole safetensors file: {cut}"))
        })?;
        let info =
            read_info(metadata.metadata().as_ref()).map_err(|reason| Error::trace(path, reason))?;
        let layers = read_layers(&metadata).map_err(|reason| Error::trace(path, reason))?;
        Ok(Self { path: path.into(), map, data_start: header + 8, info, layers })
    }

    /// The file, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the trace says about itself.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// The layers, by number.
    pub fn layers(&self) -> impl Iterator<Item = (usize, Layout)> + '_ {
        self.layers.iter().map(|(&number, layer)| (number, layer.layout))
    }

    /// Reads one layer and checks its numbers; `None` if the trace does not have it.
    ///
    /// # Errors
    /// [`Error::Trace`] naming the tensor and place of a number that is not finite, or of a limit
    /// that is out of range.
    pub fn layer(&self, number: usize) -> Option<Result<Layer>> {
        let layer = self.layers.get(&number)?;
        Some(self.read(layer).map_err(|reason| Error::trace(&self.path, reason)))
    }

    fn read(&self, layer: &LayerTensors) -> Result<Layer, String> {
        let limits = |tensor: &Tensor| self.limits(tensor, layer.layout.tokens);
        Ok(Layer {
            queries: self.numbers(&layer.queries)?,
            keys: self.numbers(&layer.keys)?,
            values: self.numbers(&layer.values)?,
            visible: layer.visible.as_ref().map(limits).transpose()?,
            prompt: layer.prompt.as_ref().map(|tensor| self.numbers(tensor)).transpose()?,
        })
    }

    fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.map[self.data_start..][tensor.span.clone()]
    }

    fn numbers(&self, tensor: &Tensor) -> Result<Array3<f32>, String> {
        let bytes = self.bytes(tensor);
        let numbers: Vec<f32> = match tensor.dtype {
            Dtype::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Dtype::F16 => {
                bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
        };
        let &[heads, rows, dim] = &tensor.shape[..] else {
            return Err(format!("tensor `{}`: expected rank 3", tensor.name));
        };
        if let Some(i) = numbers.iter().position(|x| x.is_nan() || x.abs() > LARGEST) {
            let place = [i / (rows * dim), i / dim % rows, i % dim];
            return Err(format!(
                "tensor `{}`: {} at {place:?}; expected finite numbers of magnitude at most \
                 {LARGEST:e}",
                tensor.name, numbers[i]
            ));
        }
        Array3::from_shape_vec((heads, rows, dim), numbers)
            .map_err(|error| format!("tensor `{}`: {error}", tensor.name))
    }

    fn limits(&self, tensor: &Tensor, tokens: usize) -> Result<Vec<usize>, String> {
        let limits = self.bytes(tensor).as_chunks().0.iter().map(|&b| i64::from_le_bytes(b));
        let check = |(i, limit): (usize, i64)| match usize::try_from(limit) {
            Ok(limit) if (1..=tokens).contains(&limit) => Ok(limit),
            _ => Err(format!("tensor `{}`: {limit} at [{i}]; expected 1 to {tokens}", tensor.name)),
        };
        limits.enumerate().map(check).collect()
    }
}

/// The first tensor that a file is too short for, if its header is whole.
fn cut_tensor(bytes: &[u8]) -> Option<String> {
    let length = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let start = length.checked_add(8)?;
    let metadata: Metadata = serde_json::from_slice(bytes.get(8..start)?).ok()?;
    let end = |name: &String| metadata.info(name).map_or(0, |info| info.data_offsets.1);
    let cut = metadata.offset_keys().into_iter().find(|name| start + end(name) > bytes.len())?;
    let (expected, found) = (start + end(&cut), bytes.len());
    Some(format!("tensor `{cut}` ends at byte {expected}, the file at byte {found}"))
}

fn read_info(metadata: Option<&HashMap<String, String>>) -> Result<TraceInfo, String> {
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
    Ok(TraceInfo { scale, model: get("model").cloned(), source: get("source").cloned() })
}

fn read_layers(metadata: &Metadata) -> Result<BTreeMap<usize, LayerTensors>, String> {
    let mut found: BTreeMap<usize, BTreeMap<String, Tensor>> = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        let (layer, part) = parse_name(&name)?;
        let tensor = Tensor::new(name, info);
        found.entry(layer).or_default().insert(part, tensor);
    }
    if found.is_empty() {
        return Err("no tensors; expected `layers.0.queries` and so on".into());
    }
    found.into_iter().map(|(l, parts)| Ok((l, LayerTensors::new(l, parts)?))).collect()
}

const PARTS: [&str; 5] = ["queries", "keys", "values", "visible", "prompt"];

/// `layers.3.keys` is `(3, "keys")`.
fn parse_name(name: &str) -> Result<(usize, String), String> {
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

impl Tensor {
    fn new(name: String, info: &TensorInfo) -> Self {
        let (start, end) = info.data_offsets;
        Self { name, dtype: info.dtype, shape: info.shape.clone(), span: start..end }
    }

    /// The three dimensions of a floating-point tensor.
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

    /// Refuses a shape in which a dimension is not what another tensor says.
    fn expect(&self, expected: &[usize]) -> Result<(), String> {
        if self.shape == expected {
            return Ok(());
        }
        Err(format!("tensor `{}` has shape {:?}; expected {expected:?}", self.name, self.shape))
    }
}

impl LayerTensors {
    fn new(number: usize, mut parts: BTreeMap<String, Tensor>) -> Result<Self, String> {
        let mut take = |part: &str| {
            let missing = || format!("no tensor `layers.{number}.{part}`");
            parts.remove(part).ok_or_else(missing)
        };
        let (queries, keys, values) = (take("queries")?, take("keys")?, take("values")?);
        let (visible, prompt) = (take("visible").ok(), take("prompt").ok());
        let [query_heads, query_count, head_dim] = queries.dims()?;
        let [kv_heads, tokens, _] = keys.dims()?;
        keys.expect(&[kv_heads, tokens, head_dim])?;
        let [_, _, value_dim] = values.dims()?;
        values.expect(&[kv_heads, tokens, value_dim])?;
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
        if let Some(visible) = &visible {
            if visible.dtype != Dtype::I64 {
                return Err(format!(
                    "tensor `{}` is {:?}; expected I64",
                    visible.name, visible.dtype
                ));
            }
            visible.expect(&[query_count])?;
        }
        let prompt_count = match &prompt {
            None => 0,
            Some(prompt) => {
                let [_, count, _] = prompt.dims()?;
                prompt.expect(&[query_heads, count.min(tokens), head_dim])?;
                count
            }
        };
        let layout = Layout {
            shape,
            tokens,
            queries: query_count,
            prompt: prompt_count,
            causal: visible.is_some(),
            storage: storage(keys.dtype),
        };
        Ok(Self { layout, queries, keys, values, visible, prompt })
    }
}

fn storage(dtype: Dtype) -> Storage {
    match dtype {
        Dtype::F16 => Storage::F16,
        Dtype::BF16 => Storage::Bf16,
        _ => Storage::F32,
    }
}

/// Writes a trace, rounding its numbers to `storage`; beside, and renamed when whole.
///
/// # Errors
/// [`Error::File`] if it cannot be written, [`Error::Trace`] if a number does not survive rounding.
pub fn write_trace(
    path: &Path,
    info: &TraceInfo,
    layers: &BTreeMap<usize, Layer>,
    storage: Storage,
) -> Result<()> {
    let mut tensors = Tensors::default();
    for (number, layer) in layers {
        let arrays = [
            ("queries", Some(&layer.queries)),
            ("keys", Some(&layer.keys)),
            ("values", Some(&layer.values)),
            ("prompt", layer.prompt.as_ref()),
        ];
        for (part, array) in arrays.into_iter().filter_map(|(part, a)| Some((part, a?))) {
            let name = format!("layers.{number}.{part}");
            let (dtype, bytes) = encode(array, storage)
                .map_err(|x| Error::trace(path, format!("tensor `{name}`: cannot store {x}")))?;
            tensors.push(name, dtype, array.shape(), &bytes);
        }
        if let Some(visible) = &layer.visible {
            let bytes: Vec<u8> = visible.iter().flat_map(|&n| (n as i64).to_le_bytes()).collect();
            let name = format!("layers.{number}.visible");
            tensors.push(name, Dtype::I64, &[visible.len()], &bytes);
        }
    }
    let mut metadata = BTreeMap::from([("format".to_owned(), FORMAT.to_owned())]);
    metadata.extend(info.scale.map(|scale| ("scale".to_owned(), scale.to_string())));
    metadata.extend(info.model.clone().map(|model| ("model".to_owned(), model)));
    metadata.extend(info.source.clone().map(|source| ("source".to_owned(), source)));
    write_beside(path, &tensors.into_bytes(metadata))
}

/// The bytes of an array, or the number that does not survive rounding.
fn encode(array: &Array3<f32>, storage: Storage) -> Result<(Dtype, Vec<u8>), f32> {
    let largest = if storage == Storage::F16 { f16::MAX.to_f32() } else { LARGEST };
    if let Some(&x) = array.iter().find(|x| x.is_nan() || x.abs() > largest) {
        return Err(x);
    }
    Ok(match storage {
        Storage::F32 => (Dtype::F32, array.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Storage::F16 => {
            (Dtype::F16, array.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect())
        }
        Storage::Bf16 => {
            (Dtype::BF16, array.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect())
        }
    })
}
