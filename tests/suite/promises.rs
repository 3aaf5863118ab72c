//! Promises of the `cpu` backend, which has its own statistics and sums. The table of promises in
//! `crates/testkit/tests/promises` tests those of core.

use ndarray::{Array1, Array3, s};
use vattention::config::Loader;
use vattention::{FallBack, Options, Shape, Storage, backend};
use vattention_testkit::promises::{HeadData, PromiseHead, VALUE_DIM, exceeds_rate};

const TRIALS: usize = 20_000;
const EPSILON: f64 = 0.05;
const DELTA: f64 = 0.1;

const UNIFORM: &str = "{ type = 'uniform', base = 64 }";
const CODES: &str = "{ type = 'priority', index = '2-bit' }";
const KEYS: &str = "{ type = 'priority', index = '8-bit' }";

fn length(x: &Array1<f64>) -> f64 {
    x.dot(x).sqrt()
}

/// Number of errors above [`EPSILON`] of the worst query head, for an estimator with another
/// `epsilon`, and mean number of tokens drawn for a row. Errors are relative to dense attention
/// over the stored rows.
fn violations(
    data: &HeadData,
    (storage, sampler): (Storage, &str),
    estimator: &str,
    epsilon: f64,
) -> (usize, f64) {
    let text = format!(
        "selectors = [{{ type = 'oracle-top-k', size = 0.05, score = 'head' }}]\n\
         sampler = {sampler}\n\
         estimator = {{ epsilon = {epsilon}, delta = {DELTA}, type = {estimator} }}"
    );
    let pipeline = Loader::default().parse("cpu.toml", &text).unwrap();
    let (group, dim) = (data.group, data.head_dim);
    let tokens = data.values.len() / VALUE_DIM;
    let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: VALUE_DIM };
    let keys = Array3::from_shape_vec((1, tokens, dim), data.keys.clone()).unwrap();
    let values = Array3::from_shape_vec((1, tokens, VALUE_DIM), data.values.clone()).unwrap();
    // All steps have the same query, but each draws another sample.
    let queries = Array3::from_shape_fn((group, 100, dim), |(h, _, i)| data.queries[h * dim + i]);
    let exact = backend("reference").unwrap();
    let (scale, fall_back) = (Some(1.0), FallBack::Never);
    let options = Options { scale, fall_back, storage, ..Options::default() };
    let dense = Loader::default().parse("dense.toml", "").unwrap();
    let mut exact = exact.start(&dense, 0, shape, &options).unwrap();
    exact.append(keys.view(), values.view()).unwrap();
    let exact = exact.attend(queries.slice(s![.., ..1, ..]), None).unwrap();
    let mut attention = backend("cpu").unwrap().start(&pipeline, 0, shape, &options).unwrap();
    attention.append(keys.view(), values.view()).unwrap();

    let (mut violated, mut sampled) = (vec![0; group], 0);
    for _ in 0..TRIALS / 100 {
        let output = attention.attend(queries.view(), None).unwrap();
        for (member, t) in (0..group).flat_map(|member| (0..100).map(move |t| (member, t))) {
            let error = if estimator.contains("denominator") {
                let apart =
                    output.log_denominator[[member, t]] - exact.log_denominator[[member, 0]];
                (f64::from(apart).exp() - 1.0).abs()
            } else {
                let want = exact.out.slice(s![member, 0, ..]).mapv(f64::from);
                let apart = output.out.slice(s![member, t, ..]).mapv(f64::from) - &want;
                length(&apart) / length(&want)
            };
            violated[member] += usize::from(error > EPSILON);
        }
        sampled += output.rows.iter().map(|row| row.sampled).sum::<usize>();
    }
    (violated.into_iter().max().unwrap(), sampled as f64 / (group * TRIALS) as f64)
}

/// The number of trials is ten times that of the table. Samples for twice the epsilon violate the
/// promise, if they are larger than the initial size.
#[test]
fn the_cpu_backend_keeps_its_promises() {
    let ratio = "'ratio'";
    for (storage, sampler, estimator) in [
        (Storage::F32, UNIFORM, ratio),
        (Storage::F32, UNIFORM, "'clt', target = 'denominator'"),
        (Storage::Q8, UNIFORM, ratio),
        (Storage::Q8, CODES, ratio),
        (Storage::Q8, KEYS, ratio),
    ] {
        for head in [PromiseHead::Gaussian, PromiseHead::LogNormal(2.0)] {
            let data = head.data(1);
            let case = format!("{head:?}, {storage}, {sampler}, {estimator}");
            let count = |epsilon| violations(&data, (storage, sampler), estimator, epsilon);
            let (violated, sampled) = count(EPSILON);
            println!("{case}: {violated} of {TRIALS}, {sampled:.0} sampled");
            assert!(!exceeds_rate(violated, TRIALS, DELTA), "{case}: {violated}");
            if sampler == UNIFORM && sampled >= 256.0 {
                let (violated, _) = count(2.0 * EPSILON);
                assert!(exceeds_rate(violated, TRIALS, DELTA), "{case}: {violated}");
            }
        }
    }
}
