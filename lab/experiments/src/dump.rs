//! Outputs and selections of pipelines, as tensors for other tools.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use vattention_core::Output;
use vattention_trace::{Tensors, write_beside};

use crate::Result;

/// Outputs and selections, per pipeline and layer.
#[derive(Debug, Default)]
pub struct Dump {
    parts: BTreeMap<(usize, usize), DumpPart>,
}

/// One pipeline on one layer, rows in (query, query head) order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct DumpPart {
    queries: usize,
    heads: usize,
    value_dim: usize,
    output: Vec<f32>,
    indptr: Vec<i64>,
    indices: Vec<i64>,
    probabilities: Vec<f32>,
}

impl DumpPart {
    /// Adds the output of one query, if it carries its selection.
    pub(crate) fn push(&mut self, output: Output) {
        let Some(selection) = output.selection else { return };
        let (heads, queries, value_dim) = output.out.dim();
        (self.heads, self.value_dim) = (heads, value_dim);
        self.queries += queries;
        self.output.extend(output.out.permuted_axes([1, 0, 2]).iter());
        let before = self.indices.len();
        self.indptr
            .extend(selection.indptr[..selection.rows()].iter().map(|&i| (before + i) as i64));
        self.indices.extend(selection.indices.iter().map(|&token| i64::from(token)));
        self.probabilities.extend(selection.probabilities);
    }
}

impl Dump {
    /// Adds the outputs of a pipeline on a layer.
    pub(crate) fn insert(&mut self, pipeline: usize, layer: usize, part: DumpPart) {
        self.parts.insert((pipeline, layer), part);
    }

    /// Writes, per pipeline `i` and layer `l`, `{i}.layers.{l}.output` f32 `[queries, query_heads,
    /// value_dim]`, `.indptr` i64 `[queries · query_heads + 1]`, `.indices` i64 and
    /// `.probabilities` f32.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut tensors = Tensors::default();
        for ((pipeline, layer), part) in &self.parts {
            let name = |what: &str| format!("{pipeline}.layers.{layer}.{what}");
            let f32s = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let i64s = |x: &[i64]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let mut indptr = part.indptr.clone();
            indptr.push(part.indices.len() as i64);
            tensors.push(name("indptr"), Dtype::I64, &[indptr.len()], &i64s(&indptr));
            let indices = &part.indices;
            tensors.push(name("indices"), Dtype::I64, &[indices.len()], &i64s(indices));
            let shape = [part.queries, part.heads, part.value_dim];
            tensors.push(name("output"), Dtype::F32, &shape, &f32s(&part.output));
            let probabilities = &part.probabilities;
            let shape = [probabilities.len()];
            tensors.push(name("probabilities"), Dtype::F32, &shape, &f32s(probabilities));
        }
        Ok(write_beside(path, &tensors.into_bytes(BTreeMap::new()))?)
    }
}
