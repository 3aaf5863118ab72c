//! File of trained maps. Reading loads only the rows of one head.

use std::path::Path;
use std::sync::Arc;

use vattention_core::{Shape, Site};

use super::{Bits, IndexScope};
use crate::network::{Activation, Affine, CodeMap, Network};
use vattention_index::tensor_file::{TensorFile, mismatch};

const FORMAT: &str = "vattention-hash/1";

/// Open file of trained maps. Errors name the file, and the tensor if they concern one.
pub(super) struct HashWeights(TensorFile);

impl HashWeights {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        TensorFile::open(path, FORMAT).map(Self)
    }

    /// Reads the maps of `member` of the group at `site`.
    pub(super) fn read_map(
        &self,
        site: &Site,
        codes: IndexScope,
        member: usize,
        activation: Activation,
    ) -> Result<CodeMap, String> {
        let side = |side: &str| -> Result<Arc<Network>, String> {
            let layers =
                self.read_layers(&format!("layers.{}.{side}", site.layer), site, codes, member)?;
            Network::new(layers, activation).map(Arc::new).map_err(|error| error.to_string())
        };
        let read = || -> Result<CodeMap, String> {
            let (query, key) = (side("query")?, side("key")?);
            let [bits, key_bits] = [&query, &key].map(|network| network.outputs());
            if bits != key_bits {
                return Err(format!(
                    "keys have codes of {key_bits} bits: expected {bits}, as queries have"
                ));
            }
            Bits::try_from(bits as u64)?;
            CodeMap::new(query, key, self.read_scale(site.shape)?)
                .map_err(|error| error.to_string())
        };
        read().map_err(|reason| self.0.named(&reason))
    }

    /// Returns the softmax scale by which the model multiplies queries.
    fn read_scale(&self, shape: Shape) -> Result<f32, String> {
        let Some(text) = self.0.metadata("scale") else {
            return Ok(shape.default_scale());
        };
        match text.parse::<f32>() {
            Ok(scale) if scale > 0.0 && scale.is_finite() => Ok(scale),
            _ => Err(format!("scale is {text}: expected a positive number")),
        }
    }

    /// Reads the layers under a name.
    fn read_layers(
        &self,
        name: &str,
        site: &Site,
        codes: IndexScope,
        member: usize,
    ) -> Result<Vec<Affine>, String> {
        let mut layers: Vec<Affine> = Vec::new();
        loop {
            let weight = format!("{name}.{}.weight", layers.len());
            let Some(info) = self.0.find(&weight) else { break };
            let width = layers.last().map_or(site.shape.head_dim, |layer| layer.bias.len());
            let (heads, head, outputs) = match info.shape[..] {
                [heads, inputs, outputs] if inputs == width && outputs > 0 => {
                    (heads, find_row(heads, site, codes, member), outputs)
                }
                _ => (0, None, 0),
            };
            let head = head.ok_or_else(|| {
                let expected = format!("[{}, {width}, out]", describe_rows(site, codes));
                format!(
                    "{}{}",
                    mismatch(&weight, info, &expected),
                    advice(&info.shape, site, codes)
                )
            })?;
            let bias = format!("{name}.{}.bias", layers.len());
            let bias_info = self.0.info(&bias)?;
            if bias_info.shape != [heads, outputs] {
                return Err(mismatch(&bias, bias_info, &format!("[{heads}, {outputs}]")));
            }
            layers.push(Affine {
                weight: self.0.row(&weight, head)?,
                bias: self.0.row(&bias, head)?,
            });
        }
        if layers.is_empty() {
            self.0.info(&format!("{name}.0.weight"))?;
        }
        Ok(layers)
    }
}

/// Returns the row of a tensor of `heads` rows that `member` of the group at `site` uses; `None` if
/// the number of rows does not fit.
fn find_row(heads: usize, site: &Site, codes: IndexScope, member: usize) -> Option<usize> {
    let Shape { query_heads, kv_heads, .. } = site.shape;
    let first = site.kv_head * site.shape.group();
    match codes {
        IndexScope::Head if heads == query_heads => Some(first + member),
        IndexScope::Group if heads == kv_heads => Some(site.kv_head),
        IndexScope::Group if heads == query_heads => Some(first),
        _ => None,
    }
}

/// Advice for a tensor with a row per KV head, such as HATA's matrices; empty for other tensors.
fn advice(shape: &[usize], site: &Site, codes: IndexScope) -> &'static str {
    if codes == IndexScope::Head && shape.first() == Some(&site.shape.kv_heads) {
        "; these maps are of KV heads: write `codes = \"group\"`"
    } else {
        ""
    }
}

/// Describes the number of rows that a tensor may have.
fn describe_rows(site: &Site, codes: IndexScope) -> String {
    let Shape { query_heads, kv_heads, .. } = site.shape;
    match codes {
        IndexScope::Head => format!("{query_heads} query heads"),
        IndexScope::Group => format!("{kv_heads} KV heads or {query_heads} query heads"),
    }
}
