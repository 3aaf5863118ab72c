//! Picks and outputs of the paper's reference implementation, which the tests call the peer, on
//! fixed inputs (`tests/golden/reference`, explained in its README), and our pipelines on the same
//! inputs.

use std::sync::Arc;

use ndarray::{Array3, Array4, ArrayD, ArrayView3, IxDyn, s};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;
use vattention::plugin::SelectorConfig;
use vattention::selectors::{Sink, Window};
use vattention::{Backend, FallBack, Options, Output, PipelineConfig, Shape, Share, Size};

/// Layer of all cases.
pub(crate) const LAYER: usize = 3;

/// One set of inputs, and the results of several compositions.
pub(crate) struct Case {
    manifest: Value,
    tensors: Vec<u8>,
    /// Tensors of another case that this case shares.
    base: Option<Vec<u8>>,
}

impl Case {
    /// Reads the case with this name, `a_causal` or `a_nomask`.
    pub(crate) fn load(name: &str) -> Self {
        let folder = super::golden("reference");
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&text).unwrap();
        let cases = manifest["cases"].as_array().unwrap();
        let manifest = cases.iter().find(|case| case["case"] == name).unwrap().clone();
        let read = |case: &str| std::fs::read(folder.join(format!("{case}.safetensors"))).unwrap();
        let base = manifest["same_as"]["case"].as_str().map(read);
        Self { manifest, tensors: read(name), base }
    }

    /// Compositions: each has a `label`, and `maskers` in order.
    pub(crate) fn compositions(&self) -> &[Value] {
        self.manifest["compositions"].as_array().unwrap()
    }

    /// A tensor of the case, or of the case whose tensors it shares.
    pub(crate) fn tensor(&self, name: &str) -> ArrayD<f32> {
        let tensors = SafeTensors::deserialize(&self.tensors).unwrap();
        let base = self.base.as_ref().map(|base| SafeTensors::deserialize(base).unwrap());
        let view = tensors.tensor(name).or_else(|error| base.ok_or(error)?.tensor(name)).unwrap();
        let data = view.data();
        let numbers: Vec<f32> = match view.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
            Dtype::I32 => {
                data.as_chunks().0.iter().map(|&x| i32::from_le_bytes(x) as f32).collect()
            }
            Dtype::I16 => {
                data.as_chunks().0.iter().map(|&x| i16::from_le_bytes(x).into()).collect()
            }
            Dtype::I8 => data.iter().map(|&x| x.cast_signed().into()).collect(),
            Dtype::U8 => data.iter().map(|&x| x.into()).collect(),
            other => panic!("{name} is {other:?}"),
        };
        ArrayD::from_shape_vec(IxDyn(view.shape()), numbers).unwrap()
    }

    /// A tensor of a composition, with four axes.
    pub(crate) fn composition_tensor(&self, label: &str, name: &str) -> Array4<f32> {
        self.tensor(&format!("{label}/{name}")).into_dimensionality().unwrap()
    }

    /// The input `queries`, `keys` or `values`, `[heads, rows, dim]`; the batch has one element.
    pub(crate) fn input(&self, name: &str) -> Array3<f32> {
        let batch: Array4<f32> = self.tensor(name).into_dimensionality().unwrap();
        batch.slice_move(s![0, .., .., ..])
    }

    /// Shape of the inputs.
    pub(crate) fn shape(&self) -> Shape {
        let (query_heads, _, head_dim) = self.input("queries").dim();
        let (kv_heads, _, value_dim) = self.input("values").dim();
        Shape { query_heads, kv_heads, head_dim, value_dim }
    }

    /// Number of tokens visible to each query. With a causal mask, queries are at the last
    /// positions.
    pub(crate) fn visible(&self) -> Vec<usize> {
        let (queries, tokens) = (self.input("queries").dim().1, self.input("keys").dim().1);
        let causal = self.manifest["attention_mask"].as_str().is_some_and(|m| m.contains("causal"));
        (0..queries).map(|t| if causal { tokens - queries + t + 1 } else { tokens }).collect()
    }

    /// Runs a pipeline on the case's inputs without fallback to dense steps.
    pub(crate) fn run(&self, backend: &dyn Backend, pipeline: PipelineConfig) -> Output {
        self.run_queries(backend, &Arc::new(pipeline), self.input("queries").view())
    }

    /// Compositions whose third part has the type `part`.
    pub(crate) fn compositions_with<'a>(
        &'a self,
        part: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.compositions().iter().filter(move |c| c["maskers"][2]["type"] == part)
    }

    /// Runs a pipeline like [`Self::run`], with other queries.
    pub(crate) fn run_queries(
        &self,
        backend: &dyn Backend,
        pipeline: &Arc<PipelineConfig>,
        queries: ArrayView3<'_, f32>,
    ) -> Output {
        let options =
            Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
        let mut attention = backend.start(pipeline, LAYER, self.shape(), &options).unwrap();
        attention.append(self.input("keys").view(), self.input("values").view()).unwrap();
        attention.attend(queries, Some(&self.visible())).unwrap()
    }
}

/// Pipeline of a composition of a sink, a window and a third part, for which `part` is used.
pub(crate) fn pipeline_of(maskers: &Value, part: Box<dyn SelectorConfig>) -> PipelineConfig {
    let (sink, window) = (size(&maskers[0]["sink_size"]), size(&maskers[1]["window_size"]));
    PipelineConfig {
        share: Share::Head,
        selectors: vec![
            Box::new(Sink { size: sink }),
            Box::new(Window { size: window, aligned: false }),
            part,
        ],
        ..PipelineConfig::default()
    }
}

/// A size in the format of the reference implementation: a fraction of the tokens, or a count.
pub(crate) fn size(value: &Value) -> Size {
    serde_json::from_value(value.clone()).unwrap()
}
