//! Layers of a trace as bytes, which can be joined with the layers of other traces.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};

use super::header::{PARTS, parse_name, read_info};
use super::layout::TraceInfo;
use super::write::metadata;
use crate::tensors::Tensors;
use crate::{Error, Result, write_beside};

/// Tensors of a trace by layer, as bytes. A shard of a trace may have no layers.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceLayers {
    /// Metadata of the trace.
    pub info: TraceInfo,
    layers: BTreeMap<usize, RawLayer>,
}

/// Tensors of a layer, by the name of the part.
type RawLayer = BTreeMap<String, LayerTensor>;

#[derive(Clone, Debug, PartialEq)]
struct LayerTensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TraceLayers {
    /// Reads a trace, or a shard of one.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read, [`Error::Trace`] if it is damaged or not a
    /// trace.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(|source| Error::file(path, source))?;
        let refuse = |reason| Error::trace(path, reason);
        let damaged = |error: safetensors::SafeTensorError| {
            refuse(format!("not a whole safetensors file: {error}"))
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let info = read_info(header.metadata().as_ref()).map_err(refuse)?;
        let mut layers: BTreeMap<usize, RawLayer> = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(&bytes).map_err(damaged)?.iter() {
            let (layer, part) = parse_name(name).map_err(refuse)?;
            let (dtype, shape) = (view.dtype(), view.shape().to_vec());
            let tensor = LayerTensor { dtype, shape, bytes: view.data().to_vec() };
            layers.entry(layer).or_default().insert(part, tensor);
        }
        Ok(Self { info, layers })
    }

    /// Layer numbers, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.layers.keys().copied()
    }

    /// Adds the layers of another trace.
    ///
    /// # Errors
    /// Returns the number of a layer that both traces have, with different tensors.
    pub fn join(&mut self, other: Self) -> Result<(), usize> {
        for (number, layer) in other.layers {
            if *self.layers.entry(number).or_insert_with(|| layer.clone()) != layer {
                return Err(number);
            }
        }
        Ok(())
    }

    /// Writes the layers, as [`write_trace`](super::write::write_trace) does.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut tensors = Tensors::default();
        for (number, layer) in &self.layers {
            for part in PARTS {
                let Some(tensor) = layer.get(part) else { continue };
                let name = format!("layers.{number}.{part}");
                tensors.push(name, tensor.dtype, &tensor.shape, &tensor.bytes);
            }
        }
        write_beside(path, &tensors.into_bytes(metadata(&self.info)))
    }
}
