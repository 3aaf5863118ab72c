//! What a promise rests on, in a whole pipeline.

use ndarray::Array3;
use vattention::{Certificate, FallBack, Kind, Options, Shape, available_backends, config::Loader};

/// The bound of an exact selector reaches the estimator, and makes its promise a proof.
#[test]
fn exact_top_k_and_hoeffding_make_a_proof() {
    let pipeline = Loader::default().parse("proof.toml", &proof("head")).unwrap();
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let tokens =
        Array3::from_shape_fn(
            (1, 4000, 1),
            |(_, t, _)| {
                if t % 40 == 0 { 5.0 } else { (t % 7) as f32 * 0.01 }
            },
        );
    let queries = Array3::from_shape_fn((2, 1, 1), |(h, _, _)| 1.0 + h as f32);
    for backend in available_backends() {
        let options = Options { fall_back: FallBack::Never, ..Options::default() };
        let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
        attention.append(tokens.view(), tokens.view()).unwrap();
        for row in attention.attend(queries.view(), None).unwrap().rows {
            let Certificate { kind, held, assumes, .. } = row.certificate;
            assert_eq!((kind, held), (Kind::FiniteSample, true));
            assert!(assumes.is_empty() && row.certain + row.sampled < 2000, "{row:?}");
        }
    }
}

/// Scores of a group bound no head's own, so nothing could ever be proved.
#[test]
fn a_pipeline_whose_bound_nobody_proves_is_refused() {
    let error = Loader::default().parse("proof.toml", &proof("group")).unwrap_err().to_string();
    assert!(error.contains("needs a proved bound"), "{error}");
}

fn proof(score: &str) -> String {
    format!(
        "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\nscore = \"{score}\"\n[estimator]\n\
         type = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2"
    )
}
