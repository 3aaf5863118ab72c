//! Selections and outputs against the reference implementation's (`../shared/golden/peer`), for
//! every composition of sink, window, oracle top-k and oracle top-p.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use ndarray::{Array3, Array4, s};
use safetensors::SafeTensors;
use serde_json::Value;
use vattention::{Backend, Options, PipelineConfig, Shape, Share, Size, all_backends, selectors};

struct Case {
    manifest: Value,
    own: Vec<u8>,
    base: Vec<u8>,
}

impl Case {
    fn load(name: &str) -> Option<Self> {
        let folder = common::golden("peer")?;
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&text).unwrap();
        let cases = manifest["cases"].as_array().unwrap();
        let manifest = cases.iter().find(|case| case["case"] == name).unwrap().clone();
        let read = |case: &str| std::fs::read(folder.join(format!("{case}.safetensors"))).unwrap();
        let base = manifest["same_as"]["case"].as_str().map_or_else(Vec::new, read);
        Some(Self { manifest, own: read(name), base })
    }

    /// A tensor of the case, or of the case that it equals there. Masks may be u8.
    fn tensor(&self, name: &str) -> Array4<f32> {
        let own = SafeTensors::deserialize(&self.own).unwrap();
        let base = (!self.base.is_empty()).then(|| SafeTensors::deserialize(&self.base).unwrap());
        let view = own.tensor(name).or_else(|error| base.ok_or(error)?.tensor(name)).unwrap();
        let numbers: Vec<f32> = match view.dtype() {
            safetensors::Dtype::F32 => {
                view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
            }
            safetensors::Dtype::U8 => view.data().iter().map(|&x| f32::from(x)).collect(),
            other => panic!("{name} is {other:?}"),
        };
        let &[a, b, c, d] = view.shape() else { panic!("{name} has shape {:?}", view.shape()) };
        Array4::from_shape_vec((a, b, c, d), numbers).unwrap()
    }

    /// `[heads, rows, dim]` of the one batch.
    fn input(&self, name: &str) -> Array3<f32> {
        self.tensor(name).slice_move(s![0, .., .., ..])
    }

    fn run(&self, backend: &dyn Backend, label: &str, pipeline: PipelineConfig, causal: bool) {
        let (queries, keys, values) =
            (self.input("queries"), self.input("keys"), self.input("values"));
        let (query_heads, count, head_dim) = queries.dim();
        let (kv_heads, tokens, value_dim) = values.dim();
        let shape = Shape { query_heads, kv_heads, head_dim, value_dim };
        let options = Options { record: true, literal: true, ..Options::default() };
        let mut attention = backend.start(&Arc::new(pipeline), 3, shape, &options).unwrap();
        attention.append(keys.view(), values.view()).unwrap();
        let visible: Vec<usize> = (0..count).map(|t| tokens - count + t + 1).collect();
        let output = attention.attend(queries.view(), causal.then_some(&visible[..])).unwrap();

        let mask = self.tensor(&format!("{label}/mask")).slice_move(s![0, .., .., ..]);
        let want = self.tensor(&format!("{label}/output")).slice_move(s![0, .., .., ..]);
        let selection = output.selection.unwrap();
        for t in 0..count {
            for head in 0..query_heads {
                let (indices, probabilities) = selection.row(t * query_heads + head);
                let taken = mask.slice(s![head, t, ..]);
                let expected: Vec<u32> =
                    (0..tokens as u32).filter(|&i| taken[i as usize] > 0.0).collect();
                let dense = expected.is_empty();
                assert!(dense || indices == expected, "{label}: head {head}, query {t}");
                assert!(probabilities.iter().all(|&p| p == 1.0));
                let got = output.out.slice(s![head, t, ..]);
                let expected = want.slice(s![t, head, ..]);
                for (got, expected) in got.iter().zip(expected) {
                    assert!((got - expected).abs() < 1e-4, "{label}: {got} for {expected}");
                }
            }
        }
    }
}

fn size(value: &Value) -> Size {
    serde_json::from_value(value.clone()).unwrap()
}

/// The pipeline of a composition, if it is made of what this test is about.
fn pipeline(maskers: &Value) -> Option<PipelineConfig> {
    let mut pipeline = PipelineConfig { share: Share::Head, ..PipelineConfig::default() };
    for masker in maskers.as_array().unwrap() {
        pipeline.selectors.push(match masker["type"].as_str().unwrap() {
            "sink" => Box::new(selectors::Sink { size: size(&masker["sink_size"]) }),
            "local" => Box::new(selectors::Window { size: size(&masker["window_size"]) }),
            "oracle_top_k" => Box::new(selectors::OracleTopK {
                size: size(&masker["heavy_size"]),
                score: vattention::Score::Head,
            }),
            "oracle_top_p" => Box::new(selectors::OracleTopP {
                mass: serde_json::from_value(masker["top_p"].clone()).unwrap(),
                of: selectors::MassOf::Residual,
                score: vattention::Score::Head,
            }),
            _ => return None,
        });
    }
    Some(pipeline)
}

fn check(name: &str, causal: bool, expected: usize) {
    let Some(case) = Case::load(name) else { return };
    let mut checked = 0;
    for composition in case.manifest["compositions"].as_array().unwrap() {
        let maskers = &composition["maskers"];
        let windowed = maskers.as_array().unwrap().iter().any(|masker| masker["type"] == "local");
        if composition["kind"] == "incremental" || (windowed && !causal) {
            continue;
        }
        for backend in all_backends() {
            let Some(pipeline) = pipeline(maskers) else { continue };
            let label = composition["label"].as_str().unwrap();
            case.run(&*backend, label, pipeline, causal);
            checked += 1;
        }
    }
    assert_eq!(checked, expected * all_backends().len());
}

#[test]
fn causal_selections_and_outputs_are_the_peers() {
    check("a_causal", true, 11);
}

#[test]
fn selections_and_outputs_without_a_mask_are_the_peers() {
    check("a_nomask", false, 4);
}
