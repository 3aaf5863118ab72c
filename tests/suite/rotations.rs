//! Rotations of queries and keys, which change nothing but random draws for pipelines that claim to
//! be invariant.

use std::path::Path;
use std::sync::Arc;

use ndarray::{Array3, Axis, s};
use vattention::backends::Cpu;
use vattention::config::Loader;
use vattention::{Backend, FallBack, Options, PipelineConfig, RowReport, Shape};

use crate::common::number_generator;

const DIM: usize = 32;
const SHAPE: Shape = Shape { query_heads: 2, kv_heads: 1, head_dim: DIM, value_dim: DIM };
const PROMPT: usize = 1024;
const STEPS: usize = 48;

/// Queries `[query_heads, tokens, DIM]`, keys and values `[1, tokens, DIM]`.
struct Head([Array3<f32>; 3]);

/// Mean error of the output, and mean share of the tokens that were read.
#[derive(Debug)]
struct Means {
    error: f64,
    density: f64,
}

impl Head {
    /// Keys and queries with a few large channels, of which one has a bias in all keys.
    fn new(seed: u64) -> Self {
        let mut number = number_generator(seed);
        let tokens = PROMPT + STEPS;
        let size = |channel: usize| if channel.is_multiple_of(8) { 3.0 } else { 0.5 };
        let mut rows = |heads, sized: bool| {
            Array3::from_shape_fn((heads, tokens, DIM), |(_, _, channel)| {
                number() * if sized { size(channel) } else { 1.0 }
            })
        };
        let [queries, mut keys, values] = [rows(2, true), rows(1, true), rows(1, false)];
        keys.slice_mut(s![.., .., 3]).mapv_inplace(|x| x + 8.0);
        Self([queries, keys, values])
    }

    /// Returns the head with all queries and keys reflected at one hyperplane.
    fn reflected(&self) -> Self {
        let mut number = number_generator(99);
        let normal: Vec<f32> = (0..DIM).map(|_| number()).collect();
        let square: f32 = normal.iter().map(|x| x * x).sum();
        let reflect = |rows: &Array3<f32>| {
            let mut rows = rows.clone();
            for mut row in rows.lanes_mut(Axis(2)) {
                let along: f32 = row.iter().zip(&normal).map(|(x, n)| x * n).sum();
                row.iter_mut().zip(&normal).for_each(|(x, n)| *x -= 2.0 * along / square * n);
            }
            rows
        };
        let [queries, keys, values] = &self.0;
        Self([reflect(queries), reflect(keys), values.clone()])
    }

    /// Runs all steps, and compares the outputs with those of dense attention over the same head.
    fn measure(&self, pipeline: &Arc<PipelineConfig>) -> Means {
        let [dense, _] = self.attend(&Arc::new(PipelineConfig::default()));
        let [outputs, densities] = self.attend(pipeline);
        let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
        let errors = dense.chunks(DIM).zip(outputs.chunks(DIM)).map(|(exact, out)| {
            let difference: Vec<f64> = exact.iter().zip(out).map(|(a, b)| a - b).collect();
            norm(&difference) / norm(exact)
        });
        let count = densities.len() as f64;
        Means { error: errors.sum::<f64>() / count, density: densities.iter().sum::<f64>() / count }
    }

    /// Outputs of all steps and query heads, and the shares of the tokens that they read.
    fn attend(&self, pipeline: &Arc<PipelineConfig>) -> [Vec<f64>; 2] {
        let [queries, keys, values] = &self.0;
        let options = Options { fall_back: FallBack::Never, ..Options::default() };
        let mut attention = Cpu::default().start(pipeline, 0, SHAPE, &options).unwrap();
        let prompt = s![.., ..PROMPT, ..];
        attention.append(keys.slice(prompt), values.slice(prompt)).unwrap();
        attention.observe(queries.slice(s![.., PROMPT - 64..PROMPT, ..])).unwrap();
        let (mut outputs, mut densities) = (Vec::new(), Vec::new());
        for token in PROMPT..PROMPT + STEPS {
            let part = s![.., token..token + 1, ..];
            attention.append(keys.slice(part), values.slice(part)).unwrap();
            let output = attention.attend(queries.slice(part), None).unwrap();
            outputs.extend(output.out.iter().map(|&x| f64::from(x)));
            densities.extend(output.rows.iter().map(RowReport::density_of_group));
        }
        [outputs, densities]
    }
}

/// Shipped pipelines that fit the head, with their file names.
fn pipelines() -> Vec<(String, Arc<PipelineConfig>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let load = |path: &Path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, Loader::default().load(path).unwrap())
    };
    let all: Vec<_> = paths.iter().map(|path| load(path)).collect();
    // The gates of `duo-attention` are for three KV heads.
    let fits = |(name, pipeline): &(String, Arc<PipelineConfig>)| {
        pipeline.needs_classes().is_none() && pipeline.layers.is_empty() && name != "duo-attention"
    };
    all.into_iter().filter(fits).collect()
}

#[test]
fn pipelines_that_claim_invariance_do_not_depend_on_channels() {
    let head = Head::new(1);
    let reflected = head.reflected();
    let mut checked = 0;
    for (name, pipeline) in pipelines() {
        if !pipeline.is_rotation_invariant() {
            continue;
        }
        let (before, after) = (head.measure(&pipeline), reflected.measure(&pipeline));
        let near = |a: f64, b: f64| (a - b).abs() <= 0.15 * a.max(b) + 0.005;
        let context = format!("{name}: {before:?}, reflected {after:?}");
        assert!(
            near(before.error, after.error) && near(before.density, after.density),
            "{context}"
        );
        checked += 1;
    }
    assert!(checked > 15, "{checked} pipelines");
}
