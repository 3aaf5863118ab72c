//! The file of trained maps: only the rows of one head are read.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use vattention_core::{Shape, Site};

use super::map::{Activation, Affine, Map, Mlp};
use super::{Bits, CodesOf};

const FORMAT: &str = "vattention-hash/1";

/// An open file of trained maps. Every refusal names it, and the tensor if there is one.
pub(super) struct Weights {
    path: PathBuf,
    file: RefCell<File>,
    data_start: u64,
    header: Metadata,
}

impl Weights {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let read = || -> Result<(File, u64, Metadata), String> {
            let mut file = File::open(path).map_err(|error| error.to_string())?;
            let (data_start, header) = read_header(&mut file)?;
            check_format(&header)?;
            Ok((file, data_start, header))
        };
        let (file, data_start, header) =
            read().map_err(|reason| format!("{}: {reason}", path.display()))?;
        Ok(Self { path: path.into(), file: RefCell::new(file), data_start, header })
    }

    /// The maps of `member` of the group at `site`.
    pub(super) fn map(
        &self,
        site: &Site,
        codes: CodesOf,
        member: usize,
        activation: Activation,
    ) -> Result<Map, String> {
        let side = |side: &str| -> Result<Mlp, String> {
            let layers =
                self.layers(&format!("layers.{}.{side}", site.layer), site, codes, member)?;
            Ok(Mlp { layers, activation })
        };
        let read = || -> Result<Map, String> {
            let (query, key) = (side("query")?, side("key")?);
            let (bits, key_bits) = (query.outputs(), key.outputs());
            if bits != key_bits {
                return Err(format!("queries have codes of {bits} bits and keys of {key_bits}"));
            }
            Bits::try_from(bits as u64)?;
            Ok(Map { query, key: Some(key), scale: self.scale(site.shape)? })
        };
        read().map_err(|reason| format!("{}: {reason}", self.path.display()))
    }

    /// What queries are multiplied by in the model.
    fn scale(&self, shape: Shape) -> Result<f32, String> {
        let metadata = self.header.metadata().as_ref();
        let Some(text) = metadata.and_then(|metadata| metadata.get("scale")) else {
            return Ok(shape.default_scale());
        };
        match text.parse::<f32>() {
            Ok(scale) if scale > 0.0 && scale.is_finite() => Ok(scale),
            _ => Err(format!("scale is {text}: expected a positive number")),
        }
    }

    /// The layers under a name.
    fn layers(
        &self,
        name: &str,
        site: &Site,
        codes: CodesOf,
        member: usize,
    ) -> Result<Vec<Affine>, String> {
        let mut layers: Vec<Affine> = Vec::new();
        loop {
            let weight = format!("{name}.{}.weight", layers.len());
            let Some(info) = self.header.info(&weight) else { break };
            let wanted = layers.last().map_or(site.shape.head_dim, |layer| layer.bias.len());
            let (heads, head, outputs) = match info.shape[..] {
                [heads, inputs, outputs] if inputs == wanted && outputs > 0 => {
                    (heads, head(heads, site, codes, member), outputs)
                }
                _ => (0, None, 0),
            };
            let head = head.ok_or_else(|| {
                mismatch(&weight, info, &format!("[{}, {wanted}, out]", heads_of(site, codes)))
            })?;
            let bias = format!("{name}.{}.bias", layers.len());
            let bias_info = self.info(&bias)?;
            if bias_info.shape != [heads, outputs] {
                return Err(mismatch(&bias, bias_info, &format!("[{heads}, {outputs}]")));
            }
            layers.push(Affine {
                weight: self.numbers(&weight, info, head)?,
                bias: self.numbers(&bias, bias_info, head)?,
            });
        }
        if layers.is_empty() {
            self.info(&format!("{name}.0.weight"))?;
        }
        Ok(layers)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, String> {
        self.header.info(name).ok_or_else(|| format!("there is no `{name}`"))
    }

    /// The numbers of one head, the first index.
    fn numbers(&self, name: &str, info: &TensorInfo, head: usize) -> Result<Vec<f32>, String> {
        let (start, end) = info.data_offsets;
        let size = (end - start) / info.shape[0];
        let mut bytes = vec![0; size];
        let place = self.data_start + (start + head * size) as u64;
        let mut file = self.file.borrow_mut();
        file.seek(SeekFrom::Start(place))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|error| format!("`{name}` cannot be read: {error}"))?;
        let numbers = widen(&bytes, info.dtype)
            .ok_or_else(|| format!("`{name}` is {:?}: expected F32, F16 or BF16", info.dtype))?;
        match numbers.iter().find(|x| !x.is_finite()) {
            Some(x) => Err(format!("`{name}` has {x} in row {head}: expected finite numbers")),
            None => Ok(numbers),
        }
    }
}

/// Where the data begin, and what the file says is in it.
fn read_header(file: &mut File) -> Result<(u64, Metadata), String> {
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut size = [0; 8];
    file.read_exact(&mut size).map_err(|_| "not a safetensors file: too short".to_owned())?;
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

fn check_format(header: &Metadata) -> Result<(), String> {
    let format = header.metadata().as_ref().and_then(|metadata| metadata.get("format"));
    if format.map(String::as_str) == Some(FORMAT) {
        return Ok(());
    }
    let found = format.map_or("not said".into(), |format| format!("`{format}`"));
    Err(format!("the metadata's format is {found}: expected `{FORMAT}`"))
}

/// The row of a tensor of `heads` rows that `member` of the group at `site` uses.
fn head(heads: usize, site: &Site, codes: CodesOf, member: usize) -> Option<usize> {
    let Shape { query_heads, kv_heads, .. } = site.shape;
    let first = site.kv_head * site.shape.group();
    match codes {
        CodesOf::QueryHead if heads == query_heads => Some(first + member),
        CodesOf::KvHead if heads == kv_heads => Some(site.kv_head),
        CodesOf::KvHead if heads == query_heads => Some(first),
        _ => None,
    }
}

/// How many rows a tensor may have, in words.
fn heads_of(site: &Site, codes: CodesOf) -> String {
    let Shape { query_heads, kv_heads, .. } = site.shape;
    match codes {
        CodesOf::QueryHead => format!("{query_heads} query heads"),
        CodesOf::KvHead => format!("{kv_heads} KV heads or {query_heads} query heads"),
    }
}

fn mismatch(name: &str, info: &TensorInfo, expected: &str) -> String {
    format!("`{name}` is {:?}: expected {expected}", info.shape)
}

/// Little-endian numbers of a type that weights may have.
fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let pairs = || bytes.as_chunks().0.iter();
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        Dtype::F16 => pairs().map(|&x| f16::from_le_bytes(x).to_f32()).collect(),
        Dtype::BF16 => pairs().map(|&x| bf16::from_le_bytes(x).to_f32()).collect(),
        _ => return None,
    })
}
