//! Captured queries, keys and values in a safetensors file.
//!
//! Per layer `l`, in f32, f16 or bf16:
//!
//! ```text
//! layers.{l}.queries  [query_heads, queries, head_dim]
//! layers.{l}.keys     [kv_heads, tokens, head_dim]
//! layers.{l}.values   [kv_heads, tokens, value_dim]
//! layers.{l}.visible  i64 [queries]                    optional: number of visible tokens
//! layers.{l}.prompt   [query_heads, prompt, head_dim]  optional: queries of last prompt tokens
//! layers.{l}.prompt_tokens i64 [1] optional: tokens of the prompt; default: all
//! layers.{l}.classes  u8 [tokens]                      optional: 0 other, 1 punctuation, 2 special
//! layers.{l}.soft_cap f32 [1]                          optional: cap of the logits
//! layers.{l}.sink_logits f32 [query_heads]             optional: logits of attention sinks
//! metadata            format = "vattention-trace/1"; scale, model, source, share (all optional)
//! ```

mod header;
mod layers;
mod layout;
mod stored;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use ndarray::Array3;
use safetensors::tensor::{Dtype, SafeTensors};
use vattention_core::{SoftmaxForm, Storage, TokenClass, step::MAX_MAGNITUDE};

use crate::{Error, Result};

use header::{LayerTensors, StoredTensor, describe_cut_tensor, read_info, read_layers};
pub use layers::TraceLayers;
pub use layout::{Layout, TraceInfo, TraceLayer};
pub use write::write_trace;

/// First bytes of a Git LFS pointer, which a clone without `git lfs` has instead of a file.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// A memory-mapped trace file. Layers are read on demand.
///
/// The file must not change while it is open.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    map: Mmap,
    data_start: usize,
    info: TraceInfo,
    layers: BTreeMap<usize, LayerTensors>,
    /// Number type of cached rows, if it is not that of the file.
    storage: Option<Storage>,
}

impl Trace {
    /// Opens a trace and checks everything except the elements of the tensors.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, [`Error::Trace`] if it is damaged or
    /// inconsistent.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| Error::file(path, source))?;
        let is_file = file.metadata().map_err(|source| Error::file(path, source))?.is_file();
        if !is_file {
            return Err(Error::trace(path, "expected a file"));
        }
        // SAFETY: the map is only read, as bytes. If another process truncates the file, a signal
        // ends this process; the type's documentation rules this out.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|source| Error::file(path, source))?;
        if map.starts_with(POINTER) {
            let reason = "a pointer of Git LFS in the place of the trace; expected the trace, \
                          which `git lfs pull` fetches in the repository's folder";
            return Err(Error::trace(path, reason));
        }
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            let cut = describe_cut_tensor(&map).unwrap_or_else(|| error.to_string());
            Error::trace(path, format!("not a whole safetensors file: {cut}"))
        })?;
        let info =
            read_info(metadata.metadata().as_ref()).map_err(|reason| Error::trace(path, reason))?;
        let layers = read_layers(&metadata).map_err(|reason| Error::trace(path, reason))?;
        let (data_start, storage) = (header + 8, None);
        Ok(Self { path: path.into(), map, data_start, info, layers, storage })
    }

    /// Returns the trace with another number type of cached keys and values.
    /// [`layer`](Self::layer) still returns the rows of the file, and
    /// [`stored_layer`](Self::stored_layer) those of a cache.
    #[must_use]
    pub fn stored_in(self, storage: Storage) -> Self {
        Self { storage: Some(storage), ..self }
    }

    /// Rounds the keys and values of a layer to the number type of cached rows; `None` if that is
    /// the type of the file.
    ///
    /// # Errors
    /// [`Error::Trace`] names a number that is too large for the type.
    pub fn stored_layer(&self, layer: &TraceLayer) -> Result<Option<TraceLayer>> {
        let Some(storage) = self.storage else { return Ok(None) };
        let refuse = |x: f32| {
            let reason = format!("{x:e} is too large for {storage}; expected another number type");
            Error::trace(&self.path, reason)
        };
        layer.rounded_to(storage).map(Some).map_err(refuse)
    }

    /// File of the trace, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata of the trace.
    pub fn info(&self) -> &TraceInfo {
        &self.info
    }

    /// Layouts of the layers, each with the number of the layer.
    pub fn layers(&self) -> impl Iterator<Item = (usize, Layout)> + '_ {
        self.layers.iter().map(|(&number, LayerTensors { layout, .. })| {
            (number, Layout { storage: self.storage.unwrap_or(layout.storage), ..*layout })
        })
    }

    /// Reads one layer and checks the elements of its tensors; `None` if the trace lacks the layer.
    ///
    /// # Errors
    /// [`Error::Trace`] names the tensor and the place of a number that is not finite or too large,
    /// or of an integer that is out of range.
    pub fn layer(&self, number: usize) -> Option<Result<TraceLayer>> {
        let layer = self.layers.get(&number)?;
        Some(self.read(layer).map_err(|reason| Error::trace(&self.path, reason)))
    }

    /// Refuses a layer without queries, which allows no measurement.
    ///
    /// # Errors
    /// [`Error::Trace`] names the tensor.
    pub fn expect_queries(&self, number: usize, layout: &Layout) -> Result<()> {
        if layout.queries > 0 {
            return Ok(());
        }
        let reason = format!("tensor `layers.{number}.queries` holds no queries to measure on");
        Err(Error::trace(&self.path, reason))
    }

    fn read(&self, layer: &LayerTensors) -> Result<TraceLayer, String> {
        let limits = |tensor: &StoredTensor| self.read_visible(tensor, layer.layout.tokens);
        Ok(TraceLayer {
            queries: self.read_numbers(&layer.queries)?,
            keys: self.read_numbers(&layer.keys)?,
            values: self.read_numbers(&layer.values)?,
            visible: layer.visible.as_ref().map(limits).transpose()?,
            prompt: layer.prompt.as_ref().map(|tensor| self.read_numbers(tensor)).transpose()?,
            prompt_tokens: self.read_prompt_tokens(layer)?,
            classes: layer.classes.as_ref().map(|tensor| self.read_classes(tensor)).transpose()?,
            soft_cap: layer
                .soft_cap
                .as_ref()
                .map(|tensor| self.read_soft_cap(tensor))
                .transpose()?,
            sink_logits: layer
                .sink_logits
                .as_ref()
                .map(|tensor| self.read_sinks(tensor))
                .transpose()?,
        })
    }

    fn bytes(&self, tensor: &StoredTensor) -> &[u8] {
        &self.map[self.data_start..][tensor.span.clone()]
    }

    fn read_numbers(&self, tensor: &StoredTensor) -> Result<Array3<f32>, String> {
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
        if let Some(i) = numbers.iter().position(|x| x.is_nan() || x.abs() > MAX_MAGNITUDE) {
            let place = [i / (rows * dim), i / dim % rows, i % dim];
            return Err(format!(
                "tensor `{}`: {} at {place:?}; expected finite numbers of magnitude at most \
                 {MAX_MAGNITUDE:e}",
                tensor.name, numbers[i]
            ));
        }
        Array3::from_shape_vec((heads, rows, dim), numbers)
            .map_err(|error| format!("tensor `{}`: {error}", tensor.name))
    }

    fn read_prompt_tokens(&self, layer: &LayerTensors) -> Result<Option<usize>, String> {
        let Some(tensor) = &layer.prompt_tokens else { return Ok(None) };
        let Layout { prompt, tokens, .. } = layer.layout;
        let number = self.bytes(tensor).first_chunk().map_or(0, |&bytes| i64::from_le_bytes(bytes));
        match usize::try_from(number) {
            Ok(end) if (prompt.max(1)..=tokens).contains(&end) => Ok(Some(end)),
            _ => Err(format!(
                "tensor `{}` is {number}; expected {} to {tokens}, the tokens of the prompt",
                tensor.name,
                prompt.max(1)
            )),
        }
    }

    fn read_soft_cap(&self, tensor: &StoredTensor) -> Result<f32, String> {
        let cap = self.floats(tensor)[0];
        let form = SoftmaxForm { soft_cap: Some(cap), ..SoftmaxForm::default() };
        let refuse = |error| format!("tensor `{}`: {error}", tensor.name);
        form.check(1).map_err(refuse).map(|()| cap)
    }

    fn read_sinks(&self, tensor: &StoredTensor) -> Result<Vec<f32>, String> {
        let sinks = self.floats(tensor);
        let form = SoftmaxForm { sink_logits: Some(&sinks), ..SoftmaxForm::default() };
        let refuse = |error| format!("tensor `{}`: {error}", tensor.name);
        form.check(sinks.len()).map_err(refuse)?;
        Ok(sinks)
    }

    /// Numbers of a tensor of f32.
    fn floats(&self, tensor: &StoredTensor) -> Vec<f32> {
        self.bytes(tensor).as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }

    fn read_classes(&self, tensor: &StoredTensor) -> Result<Vec<TokenClass>, String> {
        let class = |(i, &number): (usize, &u8)| {
            TokenClass::from_number(number).ok_or_else(|| {
                let expected = TokenClass::NUMBERS;
                format!("tensor `{}`: {number} at [{i}]; expected {expected}", tensor.name)
            })
        };
        self.bytes(tensor).iter().enumerate().map(class).collect()
    }

    fn read_visible(&self, tensor: &StoredTensor, tokens: usize) -> Result<Vec<usize>, String> {
        let limits = self.bytes(tensor).as_chunks().0.iter().map(|&b| i64::from_le_bytes(b));
        let check = |(i, limit): (usize, i64)| match usize::try_from(limit) {
            Ok(limit) if (1..=tokens).contains(&limit) => Ok(limit),
            _ => Err(format!("tensor `{}`: {limit} at [{i}]; expected 1 to {tokens}", tensor.name)),
        };
        limits.enumerate().map(check).collect()
    }
}
