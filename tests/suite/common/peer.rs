//! What the reference implementation picked and put out on fixed inputs (`tests/golden/reference`,
//! whose README says how), and our pipelines on the same inputs.

use std::sync::Arc;

use ndarray::{Array3, Array4, ArrayD, ArrayView3, IxDyn, s};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;
use vattention::plugin::SelectorConfig;
use vattention::selectors::{Sink, Window};
use vattention::{Backend, FallBack, Options, Output, PipelineConfig, Shape, Share, Size};

/// The layer that every case is of.
pub(crate) const LAYER: usize = 3;

/// One set of inputs, and what came of it in several compositions.
pub(crate) struct Case {
    manifest: Value,
    own: Vec<u8>,
    base: Option<Vec<u8>>,
}

impl Case {
    /// The case of a name, `a_causal` or `a_nomask`.
    pub(crate) fn load(name: &str) -> Self {
        let folder = super::golden("reference");
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&text).unwrap();
        let cases = manifest["cases"].as_array().unwrap();
        let manifest = cases.iter().find(|case| case["case"] == name).unwrap().clone();
        let read = |case: &str| std::fs::read(folder.join(format!("{case}.safetensors"))).unwrap();
        let base = manifest["same_as"]["case"].as_str().map(read);
        Self { manifest, own: read(name), base }
    }

    /// The compositions: each has a `label`, and `maskers` in order.
    pub(crate) fn compositions(&self) -> &[Value] {
        self.manifest["compositions"].as_array().unwrap()
    }

    /// A tensor of the case, or of the case that it equals there.
    pub(crate) fn tensor(&self, name: &str) -> ArrayD<f32> {
        let own = SafeTensors::deserialize(&self.own).unwrap();
        let base = self.base.as_ref().map(|base| SafeTensors::deserialize(base).unwrap());
        let view = own.tensor(name).or_else(|error| base.ok_or(error)?.tensor(name)).unwrap();
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

    /// A tensor of a composition that has four axes.
    pub(crate) fn of(&self, label: &str, name: &str) -> Array4<f32> {
        self.tensor(&format!("{label}/{name}")).into_dimensionality().unwrap()
    }

    /// `queries`, `keys` or `values` of the one batch, `[heads, rows, dim]`.
    pub(crate) fn input(&self, name: &str) -> Array3<f32> {
        let batch: Array4<f32> = self.tensor(name).into_dimensionality().unwrap();
        batch.slice_move(s![0, .., .., ..])
    }

    /// The heads and the lengths of their rows.
    pub(crate) fn shape(&self) -> Shape {
        let (query_heads, _, head_dim) = self.input("queries").dim();
        let (kv_heads, _, value_dim) = self.input("values").dim();
        Shape { query_heads, kv_heads, head_dim, value_dim }
    }

    /// How many tokens each query sees: under a causal mask the queries are the last positions.
    pub(crate) fn visible(&self) -> Vec<usize> {
        let (queries, tokens) = (self.input("queries").dim().1, self.input("keys").dim().1);
        let causal = self.manifest["attention_mask"].as_str().is_some_and(|m| m.contains("causal"));
        (0..queries).map(|t| if causal { tokens - queries + t + 1 } else { tokens }).collect()
    }

    /// A pipeline on the case's inputs, with its selection recorded and nothing read instead.
    pub(crate) fn run(&self, backend: &dyn Backend, pipeline: PipelineConfig) -> Output {
        self.answer(backend, &Arc::new(pipeline), self.input("queries").view())
    }

    /// The compositions whose third part is of a type.
    pub(crate) fn compositions_with<'a>(
        &'a self,
        part: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.compositions().iter().filter(move |c| c["maskers"][2]["type"] == part)
    }

    /// The same with other queries.
    pub(crate) fn answer(
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

/// The pipeline of a composition of a sink, a window and a third part, which is `part` here.
pub(crate) fn pipeline_of(maskers: &Value, part: Box<dyn SelectorConfig>) -> PipelineConfig {
    let (sink, window) = (size(&maskers[0]["sink_size"]), size(&maskers[1]["window_size"]));
    PipelineConfig {
        share: Share::Head,
        selectors: vec![Box::new(Sink { size: sink }), Box::new(Window { size: window }), part],
        ..PipelineConfig::default()
    }
}

/// A size as the peer writes it: a fraction of the tokens, or a count.
pub(crate) fn size(value: &Value) -> Size {
    serde_json::from_value(value.clone()).unwrap()
}
