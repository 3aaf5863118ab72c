//! Tests of rotary embeddings.

use std::ops::Range;

use super::*;

const LLAMA3: Scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };

fn rotary(scaling: Scaling, dims: usize) -> Rotary {
    Rotary { theta: 10000.0, scaling, dims, interleaved: false }
}

/// Some elements of a head, and pairs of neighbours in place of halves.
#[test]
fn only_the_first_elements_are_rotated() {
    let head: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    let rotate = |interleaved| {
        let rotary = Rotary { interleaved, ..rotary(Scaling::None, 4) };
        let mut head = head.clone();
        Rope::new(8, &rotary).table(3..4).all().rotate(&mut head);
        head
    };
    let (halves, neighbours) = (rotate(false), rotate(true));
    assert_eq!((&halves[4..], &neighbours[4..]), (&head[4..], &head[4..]));
    let turn = |a: f32, b: f32, angle: f32| {
        [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    };
    let ([a, c], [b, d]) = (turn(1.0, 3.0, 3.0), turn(2.0, 4.0, 0.03));
    assert_eq!(halves[..4], [a, b, c, d]);
    let ([a, b], [c, d]) = (turn(1.0, 2.0, 3.0), turn(3.0, 4.0, 0.03));
    assert_eq!(neighbours[..4], [a, b, c, d]);
}

#[test]
fn llama3_divides_low_frequencies_and_interpolates_to_high_ones() {
    let turns = |count: f32| count * TAU / 8192.0;
    let apply = |frequency| LLAMA3.apply(frequency, 0, (16, 10000.0));
    assert_eq!(apply(turns(5.0)), turns(5.0));
    assert_eq!(apply(turns(0.5)), turns(0.5) / 8.0);
    let middle = apply(turns(2.5));
    assert!((middle / turns(2.5) - 0.5625).abs() < 1e-6);
    for edge in [1.0_f32, 4.0] {
        let (below, above) = (apply(turns(edge * 0.9999)), apply(turns(edge * 1.0001)));
        assert!((above / below - 1.0).abs() < 2e-3, "{below} {above}");
    }
}

#[test]
fn tables_agree_on_common_positions() {
    let sharpening = Sharpening { beta: 0.1, original: 4.0, first: 0.0 };
    let rope = Rope::new(16, &rotary(LLAMA3, 16));
    let tables = |positions: Range<usize>| Tables {
        ropes: vec![rope.table(positions.clone())],
        factors: Some(positions.map(|position| sharpening.factor(position)).collect()),
    };
    let (all, few) = (tables(3..10), tables(7..9));
    let row = |i: usize| (i as f32).sin();
    let rows = || (0..2 * 3 * 16).map(row).collect::<Vec<f32>>();
    let [mut a, mut b] = [(); 2].map(|()| [rows(), rows()]);
    let narrow = all.positions(Some(0), true).narrow(4, 2);
    for (positions, rows) in [(narrow, &mut a), (few.positions(Some(0), true), &mut b)] {
        let [queries, keys] = rows;
        positions.apply(queries, keys);
    }
    assert_eq!(a, b);
    assert_ne!(a[0], a[1]);
}

#[test]
fn products_of_rotated_rows_depend_on_distance_only() {
    let rotary = Rotary { theta: 100.0, ..rotary(Scaling::Linear { factor: 2.0 }, 8) };
    let rope = Rope::new(8, &rotary);
    let product = |p, q| -> f32 {
        let rotate = |p| {
            let mut row: Vec<f32> = (1..=8).map(|i| i as f32).collect();
            rope.table(p..=p).all().rotate(&mut row);
            row
        };
        rotate(p).iter().zip(rotate(q)).map(|(a, b)| a * b).sum()
    };
    assert!((product(5, 2) - product(13, 10)).abs() < 1e-3);
    assert!((product(5, 2) - product(5, 5)).abs() > 1.0);
}

#[test]
fn queries_grow_at_every_multiple_of_the_original_context() {
    let sharpening = Sharpening { beta: 0.1, original: 4.0, first: 0.0 };
    assert_eq!([0, 3].map(|p| sharpening.factor(p)), [1.0, 1.0]);
    assert_eq!(sharpening.factor(4), sharpening.factor(7));
    assert!((sharpening.factor(8) - (1.0 + 0.1 * 3.0_f32.ln())).abs() < 1e-7);
    let from_one = Sharpening { first: 1.0, ..sharpening };
    assert_eq!([2, 3].map(|p| from_one.factor(p)), [0, 4].map(|p| sharpening.factor(p)));
}
