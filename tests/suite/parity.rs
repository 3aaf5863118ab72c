//! Selections and outputs compared with those of the reference implementation
//! (`tests/golden/reference`), for all compositions of sink, window, oracle top-k and oracle top-p.

use crate::common::peer::{Case, size};
use ndarray::s;
use serde_json::Value;
use vattention::{Backend, PipelineConfig, Share, available_backends, selectors};

fn run(case: &Case, backend: &dyn Backend, label: &str, pipeline: PipelineConfig) {
    let output = case.run(backend, pipeline);
    let (mask, want) =
        (case.composition_tensor(label, "mask"), case.composition_tensor(label, "output"));
    let selection = output.selection.unwrap();
    let (_, query_heads, count, tokens) = mask.dim();
    for t in 0..count {
        for head in 0..query_heads {
            let (indices, probabilities) = selection.row(t * query_heads + head);
            let taken = mask.slice(s![0, head, t, ..]);
            let expected: Vec<u32> =
                (0..tokens as u32).filter(|&i| taken[i as usize] > 0.0).collect();
            let dense = expected.is_empty();
            assert!(dense || indices == expected, "{label}: head {head}, query {t}");
            assert!(probabilities.iter().all(|&p| p == 1.0));
            let got = output.out.slice(s![head, t, ..]);
            let expected = want.slice(s![0, t, head, ..]);
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-4, "{label}: {got} for {expected}");
            }
        }
    }
}

/// Pipeline of a composition, if it consists of these selectors only.
fn pipeline(maskers: &Value) -> Option<PipelineConfig> {
    let mut pipeline = PipelineConfig { share: Share::Head, ..PipelineConfig::default() };
    for masker in maskers.as_array().unwrap() {
        pipeline.selectors.push(match masker["type"].as_str().unwrap() {
            "sink" => Box::new(selectors::Sink { size: size(&masker["sink_size"]) }),
            "local" => {
                Box::new(selectors::Window { size: size(&masker["window_size"]), aligned: false })
            }
            "oracle_top_k" => Box::new(selectors::OracleTopK {
                size: size(&masker["heavy_size"]),
                score: vattention::plugin::Score::Head,
            }),
            "oracle_top_p" => Box::new(selectors::OracleTopP {
                mass: serde_json::from_value(masker["top_p"].clone()).unwrap(),
                of: selectors::MassScope::Residual,
                score: vattention::plugin::Score::Head,
            }),
            _ => return None,
        });
    }
    Some(pipeline)
}

fn check(name: &str, causal: bool, expected: usize) {
    let case = Case::load(name);
    let mut checked = 0;
    for composition in case.compositions() {
        let maskers = &composition["maskers"];
        let windowed = maskers.as_array().unwrap().iter().any(|masker| masker["type"] == "local");
        if composition["kind"] == "incremental" || (windowed && !causal) {
            continue;
        }
        for backend in available_backends() {
            let Some(pipeline) = pipeline(maskers) else { continue };
            let label = composition["label"].as_str().unwrap();
            run(&case, &*backend, label, pipeline);
            checked += 1;
        }
    }
    assert_eq!(checked, expected * available_backends().len());
}

#[test]
fn selections_and_outputs_equal_the_peers() {
    check("a_causal", true, 11);
    check("a_nomask", false, 4);
}
