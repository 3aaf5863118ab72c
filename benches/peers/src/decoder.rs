//! The layers of one sequence.

use ndarray::ArrayView3;
use vattention::config::Loader;
use vattention::{Attention, Options, Output, Shape, Storage};

use crate::fail::PeerResult;

/// Layers of one sequence on the `cpu` backend.
#[allow(missing_debug_implementations)]
pub struct Decoder {
    layers: Vec<Box<dyn Attention>>,
    shape: Shape,
}

impl Decoder {
    pub(crate) fn new(
        path: &str,
        settings: &str,
        storage: &str,
        layers: usize,
        shape: Shape,
        threads: usize,
    ) -> PeerResult<Self> {
        let set = settings.lines().map(str::to_owned).collect();
        let pipeline = Loader { set }.load(path)?;
        let backend = vattention::backend("cpu").ok_or("there is no backend `cpu`")?;
        let options = Options {
            storage: parse_storage(storage)?,
            threads: Some(threads),
            ..Options::default()
        };
        let start = |layer| backend.start(&pipeline, layer, shape, &options);
        Ok(Self { layers: (0..layers).map(start).collect::<Result<_, _>>()?, shape })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn append(
        &mut self,
        layer: usize,
        keys: ArrayView3<'_, f32>,
        values: ArrayView3<'_, f32>,
    ) -> PeerResult<()> {
        Ok(self.layer(layer)?.append(keys, values)?)
    }

    pub(crate) fn attend(
        &mut self,
        layer: usize,
        queries: ArrayView3<'_, f32>,
    ) -> PeerResult<Output> {
        Ok(self.layer(layer)?.attend(queries, None)?)
    }

    fn layer(&mut self, layer: usize) -> PeerResult<&mut Box<dyn Attention>> {
        let count = self.layers.len();
        let refusal = || format!("layer {layer}: expected less than {count}").into();
        self.layers.get_mut(layer).ok_or_else(refusal)
    }
}

/// Share of the tokens whose rows were read, the mean over KV heads, whose query heads report the
/// same number.
pub(crate) fn density(output: &Output) -> f64 {
    let read = output.rows.iter().map(vattention::RowReport::density_of_group);
    read.sum::<f64>() / output.rows.len() as f64
}

fn parse_storage(name: &str) -> PeerResult<Storage> {
    match name {
        "f32" => Ok(Storage::F32),
        "f16" => Ok(Storage::F16),
        "bf16" => Ok(Storage::Bf16),
        "q8" => Ok(Storage::Q8),
        _ => Err(format!("storage `{name}`: expected f32, f16, bf16 or q8").into()),
    }
}
