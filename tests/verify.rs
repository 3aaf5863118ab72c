//! What `verify` can tell that a pooled count cannot, and what it refuses.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use ndarray::Array3;
use vattention::eval::{Layer, Trace, TraceInfo, verify, write_trace};
use vattention::{Fraction, PipelineConfig, Storage, estimators::Ratio};

/// One head, twenty queries, 3,000 tokens. To the query `hidden`, if any, three far tokens are nearly
/// all of the attention, which no sample of a hundred finds; the others attend to everything alike.
fn layer(hidden: Option<usize>) -> Layer {
    let mut keys = Array3::zeros((1, 3000, 2));
    let mut values = Array3::from_elem((1, 3000, 1), 1.0);
    for token in [700, 1500, 2300] {
        keys[[0, token, 0]] = 10.0;
        values[[0, token, 0]] = 2.0;
    }
    let mut queries = Array3::zeros((1, 20, 2));
    if let Some(query) = hidden {
        queries[[0, query, 0]] = 1.0;
    }
    Layer { queries, keys, values, visible: None, prompt: None }
}

fn run(layer: Layer, trials: u32) -> vattention::eval::Result<vattention::eval::Verification> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.safetensors");
    let info = TraceInfo { scale: Some(1.0), ..TraceInfo::default() };
    write_trace(&path, &info, &BTreeMap::from([(0, layer)]), Storage::F32).unwrap();
    let tenth = Fraction::try_from(0.1).unwrap();
    let pipeline = PipelineConfig {
        estimator: Some(Box::new(Ratio::new(tenth, tenth))),
        ..PipelineConfig::default()
    };
    verify(&Arc::new(pipeline), &Trace::open(&path).unwrap(), trials, &|_, _| {})
}

#[test]
fn a_row_that_always_fails_is_not_hidden_among_others() {
    let good = run(layer(None), 2000).unwrap();
    assert!(good.held && good.violations == 0);
    let bad = run(layer(Some(7)), 2000).unwrap();
    let rate = bad.violations as f64 / bad.trials as f64;
    assert!(rate < 0.1, "pooled over queries, delta seems kept: {rate}");
    assert_eq!((bad.worst_row.query, bad.worst_row.trials), (7, 100));
    assert!(bad.worst_row.violations > 50 && !bad.held, "{:?}", bad.worst_row);
}

#[test]
fn nothing_is_held_where_nothing_was_tried() {
    let none = Layer { queries: Array3::zeros((1, 0, 2)), ..layer(None) };
    let error = run(none, 2000).unwrap_err().to_string();
    assert!(error.contains("`layers.0.queries` holds no queries"), "{error}");
    let error = run(layer(None), 5).unwrap_err().to_string();
    assert!(error.contains("5 cannot contradict delta = 0.1; expected at least 6"), "{error}");
}
