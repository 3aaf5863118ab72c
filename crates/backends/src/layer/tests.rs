use super::*;
use crate::Reference;
use crate::cache::ChunkSizes;

const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 2, head_dim: 4, value_dim: 3 };

fn layer() -> Layer<Reference> {
    let pipeline = Arc::new(PipelineConfig { dense_layers: vec![0], ..PipelineConfig::default() });
    Layer::new(&pipeline, 0, SHAPE, &Options::default(), Workers::Serial, Reference).unwrap()
}

fn rows<M: Machine>(layer: &Layer<M>, head: usize) -> Vec<f32> {
    let view = layer.heads[head].cache.view();
    view.keys().to_array(0..layer.len()).into_iter().collect()
}

/// The first KV head could have grown; it must not where the second cannot.
#[test]
fn heads_grow_together_or_not_at_all() {
    let mut layer = layer();
    let keys = Array3::from_shape_fn((2, 5, 4), |(i, j, k)| (i * 20 + j * 4 + k) as f32);
    let values = Array3::zeros((2, 5, 3));
    layer.append(keys.view(), values.view()).unwrap();

    let too_large = ChunkSizes::new(1 << 50, 50);
    let stuck = Cache::with_chunks(Storage::F32, 4, 3, too_large);
    let whole = std::mem::replace(&mut layer.heads[1].cache, stuck);
    let error = layer.append(keys.view(), values.view()).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert_eq!(layer.len(), 5);
    assert_eq!(rows(&layer, 0), (0..20).map(|x| x as f32).collect::<Vec<_>>());

    layer.heads[1].cache = whole;
    layer.append(keys.view(), values.view()).unwrap();
    assert_eq!(layer.len(), 10);
    assert_eq!(rows(&layer, 1)[20..], rows(&layer, 1)[..20]);
}

/// The reference, which fails after so many calls.
struct Mortal {
    calls: usize,
}

impl Mortal {
    fn live(&mut self) -> Result<()> {
        self.calls = self.calls.checked_sub(1).ok_or(Error::Memory { bytes: 7 })?;
        Ok(())
    }
}

impl Machine for Mortal {
    const FALLIBLE: bool = true;

    fn append(&mut self, _: usize, _: ArrayView3<'_, f32>, _: ArrayView3<'_, f32>) -> Result<()> {
        self.live()
    }

    fn answer(&mut self, heads: Vec<Situation<'_>>, workers: &Workers) -> Result<Vec<HeadStep>> {
        self.live()?;
        Reference.answer(heads, workers)
    }

    fn fork(&self, _: usize) -> Result<Self> {
        Err(Error::Memory { bytes: 7 })
    }
}

/// What a machine refuses has not happened: no token has come, no step was taken.
#[test]
fn a_machine_that_fails_changes_nothing() {
    let pipeline = Arc::new(PipelineConfig::default());
    let machine = Mortal { calls: 2 };
    let workers = Workers::Serial;
    let mut layer = Layer::new(&pipeline, 0, SHAPE, &Options::default(), workers, machine).unwrap();
    let (keys, values) = (Array3::ones((2, 5, 4)), Array3::ones((2, 5, 3)));
    let queries = Array3::ones((2, 3, 4));
    layer.append(keys.view(), values.view()).unwrap();

    let error = layer.attend(queries.view(), None).unwrap_err();
    assert!(matches!(error, Error::Memory { bytes: 7 }), "{error}");
    assert_eq!(layer.step, 0, "the first of three queries was answered");
    layer.append(keys.view(), values.view()).unwrap_err();
    assert_eq!((layer.len(), rows(&layer, 1).len()), (5, 20));
    assert!(layer.fork(None).is_err());

    layer.machine.calls = 3;
    layer.attend(queries.view(), None).unwrap();
    assert_eq!(layer.step, 3);
}
