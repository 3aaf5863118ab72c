//! The selector of `examples/custom_plugins`: read from TOML, and in a pipeline with a promise on
//! every backend. (That folder's own tests build it as a crate.)

#[allow(unreachable_pub)] // The file is a module of the example's crate.
#[path = "../../examples/custom_plugins/src/every_nth.rs"]
mod every_nth;

use crate::common;
use ndarray::Array3;
use vattention::config::{listing, load};
use vattention::{FallBack, Options, Shape, available_backends, plugin::ComponentKind};

#[test]
fn the_selector_is_listed_with_its_field() {
    let all = listing(ComponentKind::Selector);
    let entry = all.iter().find(|entry| entry.name == "every-nth").unwrap();
    assert_eq!(entry.summary, "every n-th token");
    assert_eq!(entry.fields[0].name, "n");
    assert_eq!(entry.fields[0].takes, "whole number, at least 1");
    assert_eq!(entry.fields[0].meaning, "The distance between two of them.");
}

#[test]
fn the_selector_runs_on_every_backend_with_a_sample() {
    let pipeline = load(common::root("examples/custom_plugins/skeleton.toml")).unwrap();
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 8, value_dim: 8 };
    let rows =
        Array3::from_shape_fn((1, 3000, 8), |(_, t, d)| ((t * 13 + d * 5) as f32).sin() + 1.0);
    let queries = Array3::from_shape_fn((2, 1, 8), |(h, _, d)| ((h + 2 * d) as f32).cos());
    for backend in available_backends() {
        let options =
            Options { return_selection: true, fall_back: FallBack::Never, ..Options::default() };
        let mut attention = backend.start(&pipeline, 0, shape, &options).unwrap();
        attention.append(rows.view(), rows.view()).unwrap();
        let output = attention.attend(queries.view(), None).unwrap();
        let selection = output.selection.unwrap();
        let (indices, probabilities) = selection.row(0);
        let certain = |token: usize| {
            let i = indices.binary_search(&(token as u32)).unwrap();
            probabilities[i] == 1.0
        };
        assert!((0..3000).step_by(16).chain(2872..3000).all(certain));
        assert!(output.rows[0].sampled >= 128 && output.rows[0].certificate.held);
    }
}
