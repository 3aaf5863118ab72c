use super::*;
use crate::cache::ChunkSizes;

const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 2, head_dim: 4, value_dim: 3 };

fn nothing(_: &Situation<'_>) -> HeadStep {
    unreachable!("no query is asked")
}

fn layer() -> Layer {
    let pipeline = Arc::new(PipelineConfig { dense_layers: vec![0], ..PipelineConfig::default() });
    Layer::new(&pipeline, 0, SHAPE, &Options::default(), Workers::Serial, nothing).unwrap()
}

fn rows(layer: &Layer, head: usize) -> Vec<f32> {
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
