//! Comparison of the random order with outputs of another implementation (rule 6 of `rules.rs`).

use serde::Deserialize;
use vattention_core::{Shape, Site, sample::Order, step::Stream};

#[derive(Deserialize)]
struct Case {
    place: Place,
    n: usize,
    first_block: [u32; 4],
    purpose_3_block_9: [u32; 4],
    tokens: Vec<usize>,
}

#[derive(Deserialize)]
struct Place {
    seed: u64,
    sequence: u32,
    layer: usize,
    kv_head: usize,
    member: usize,
    step: u32,
}

#[test]
fn the_order_equals_that_of_the_other_implementation() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/golden/order.json")).unwrap();
    assert!(cases.len() >= 20);
    for Case { place, n, first_block, purpose_3_block_9, tokens } in cases {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        let Place { seed, sequence, layer, kv_head, member, step } = place;
        let site = Site { seed, sequence, layer, kv_head, shape };
        let stream = Stream::new(&site, 0, step, member);
        assert_eq!(stream.block(0), first_block);
        assert_eq!(Stream::new(&site, 3, step, member).block(9), purpose_3_block_9);
        let order: Vec<usize> = Order::new(n, &stream).tokens().take(tokens.len()).collect();
        assert_eq!(order, tokens, "n = {n}");
    }
}
