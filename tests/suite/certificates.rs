//! Certificates of whole pipelines.

use crate::common::{backends, normal};
use ndarray::Array3;
use vattention::{
    Certificate, FallBack, Kind, Options, RowReport, Shape, available_backends, config::Loader,
};

/// The estimator uses the bound of an exact selector, so that its promise is proved.
#[test]
fn exact_top_k_and_hoeffding_prove_a_promise() {
    let pipeline = Loader::default().parse("proof.toml", &proof("head")).unwrap();
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 1, value_dim: 1 };
    let number = |t: usize| if t.is_multiple_of(40) { 5.0 } else { (t % 7) as f32 * 0.01 };
    let tokens = Array3::from_shape_fn((1, 4000, 1), |(_, t, _)| number(t));
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

/// Scores of a group do not bound the logits of a single query head, so no proof is possible.
#[test]
fn a_pipeline_without_a_proved_bound_is_an_error() {
    let error = Loader::default().parse("proof.toml", &proof("group")).unwrap_err().to_string();
    assert!(error.contains("needs a proved bound"), "{error}");
}

/// Omitting the error bars of a budget does not change the tokens read. Promises are checked even
/// so.
#[test]
fn omitted_error_bars_do_not_change_the_tokens_read() {
    let shape = Shape { query_heads: 4, kv_heads: 2, head_dim: 32, value_dim: 32 };
    let (keys, values) = (normal((2, 1000, 32), 1), normal((2, 1000, 32), 2));
    let queries = normal((4, 2, 32), 3);
    for (sampler, goal) in ["uniform", "stratified", "priority"]
        .into_iter()
        .flat_map(|s| [(s, "size"), (s, "epsilon")])
    {
        let text = format!(
            "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\n[sampler]\ntype = \"{sampler}\"\n\
             [estimator]\ntype = \"ratio\"\n{goal} = 0.1\ndelta = 0.1"
        );
        let pipeline = Loader::default().parse("budget.toml", &text).unwrap();
        for backend in backends() {
            let context = format!("{sampler}, {goal}, {}", backend.name());
            let run = |omit_error_bars| {
                let options = Options {
                    fall_back: FallBack::Never,
                    return_selection: true,
                    omit_error_bars,
                    ..Options::default()
                };
                let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
                attention.append(keys.view(), values.view()).unwrap();
                attention.attend(queries.view(), None).unwrap()
            };
            let (with, without) = (run(false), run(true));
            assert_eq!(with.selection, without.selection, "{context}");
            let apart = (&with.out - &without.out).mapv(f32::abs);
            assert!(apart.iter().all(|&x| x < 1e-5), "{context}: {apart}");
            for (with, without) in with.rows.into_iter().zip(without.rows) {
                if goal == "epsilon" {
                    assert_eq!(with.certificate, without.certificate, "{context}");
                    continue;
                }
                assert!(without.certificate.bar.is_none(), "{context}: {without:?}");
                assert!(without.certificate.promise.is_none() && !without.certificate.held);
                let expected = RowReport { certificate: without.certificate, ..with };
                assert_eq!(expected, without, "{context}");
            }
        }
    }
}

fn proof(score: &str) -> String {
    format!(
        "[[selectors]]\ntype = \"oracle-top-k\"\nsize = 0.05\nscore = \"{score}\"\n[estimator]\n\
         type = \"hoeffding\"\ntarget = \"denominator\"\nepsilon = 0.2\ndelta = 0.2"
    )
}
