//! What a promise rests on, in a whole pipeline.

#![allow(clippy::unwrap_used)]

use ndarray::Array3;
use vattention::{Kind, Options, Shape, all_backends, config::Loader};

/// The bound of an exact selector reaches the estimator, and makes its promise a proof.
#[test]
fn exact_top_k_and_hoeffding_make_a_proof_by_the_heads_own_scores_only() {
    let certificates = |score: &str| {
        let text = format!(
            "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\nscore = \"{score}\"\n[estimator]\n\
             type = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2"
        );
        let pipeline = Loader::default().parse("proof.toml", &text).unwrap();
        let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let tokens = Array3::from_shape_fn((1, 4000, 1), |(_, t, _)| {
            if t % 40 == 0 { 5.0 } else { (t % 7) as f32 * 0.01 }
        });
        let queries = Array3::from_shape_fn((2, 1, 1), |(h, _, _)| 1.0 + h as f32);
        let rows = all_backends().into_iter().flat_map(|backend| {
            let mut attention = backend
                .start(&pipeline, 0, shape, &Options { literal: true, ..Options::default() })
                .unwrap();
            attention.append(tokens.view(), tokens.view()).unwrap();
            attention.attend(queries.view(), None).unwrap().rows
        });
        rows.collect::<Vec<_>>()
    };
    for row in certificates("head") {
        assert_eq!((row.certificate.kind, row.certificate.held), (Kind::FiniteSample, true));
        assert!(row.certain + row.sampled < 2000, "{row:?}");
    }
    for row in certificates("group") {
        assert_eq!((row.certificate.kind, row.sampled), (Kind::Exact, 3800), "{row:?}");
    }
}
