//! The steps of a selection: `cargo bench --bench selection`.

#![allow(clippy::unwrap_used)]

use divan::{Bencher, black_box};
use vattention::index::LabelBits;
use vattention::selectors::{Bits, Codes, Quest};
use vattention::{
    Shape, Size,
    plugin::{NewTokens, Order, Picks, Score, SelectorConfig, Site, Step, Stream, Tokens},
};

const TOKENS: [usize; 2] = [32_768, 131_072];

fn main() {
    divan::main();
}

fn site(head_dim: usize) -> Site {
    let shape = Shape { query_heads: 4, kv_heads: 1, head_dim, value_dim: 1 };
    Site { seed: 1, sequence: 0, layer: 0, kv_head: 0, shape }
}

fn random(token: usize) -> u64 {
    (token as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
}

/// Scores that are spread like the agreeing bits of 32-bit codes.
fn agreeing(n: usize) -> Vec<u16> {
    (0..n).map(|token| 1 + (random(token) as u32).count_ones() as u16).collect()
}

/// A sink and a window of 128 tokens.
fn ends(n: usize) -> Picks {
    let mut picks = Picks::new(n);
    picks.take_range(0..128);
    picks.take_range(n - 128..n);
    picks
}

/// Four queries against one 32-bit code per token.
#[divan::bench(args = TOKENS)]
fn hash_scores(bencher: Bencher<'_, '_>, n: usize) {
    let mut codes = Codes::new(Bits::default());
    (0..n).for_each(|token| codes.push([random(token) as u32, 0, 0, 0]));
    let queries = [1, 2, 3, 4].map(|query| [random(n + query) as u32, 0, 0, 0]);
    bencher.bench(|| {
        let mut scores = vec![1 + 4 * 32; n];
        black_box(&codes).subtract_differing(&queries, &mut scores);
        scores
    });
}

/// One query of 128 elements against pages of 16 tokens, of which the best hold a twentieth.
#[divan::bench(args = TOKENS, consts = [0, 2, 8])]
fn quest<const BITS: u64>(bencher: Bencher<'_, '_>, n: usize) {
    let bits = LabelBits::try_from(BITS).unwrap();
    let page = 16.try_into().unwrap();
    let (site, size) = (site(128), Size::Tokens(n / 20));
    let mut selector = Quest { size, page, bits, score: Score::Head }.build(&site).unwrap();
    let number = |i: usize| random(i) as u32 as f32 / u32::MAX as f32 - 0.5;
    let keys: Vec<f32> = (0..n * 128).map(number).collect();
    let keys = Tokens::new(&keys, n, 128);
    selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
    let queries: Vec<f32> = (0..4 * 128).map(|i| number(i + 7)).collect();
    let step = Step::new(&site, &queries, keys, keys);
    bencher
        .with_inputs(|| ends(n))
        .bench_refs(|picks| black_box(&selector).select(&step.row(1), picks));
}

#[divan::bench(args = TOKENS)]
fn take_top_u16(bencher: Bencher<'_, '_>, n: usize) {
    let scores = agreeing(n);
    bencher.with_inputs(|| ends(n)).bench_refs(|picks| picks.take_top(n / 20, black_box(&scores)));
}

#[divan::bench(args = TOKENS)]
fn take_top_f32(bencher: Bencher<'_, '_>, n: usize) {
    let scores: Vec<f32> = (0..n).map(|token| (random(token) as u32) as f32).collect();
    bencher.with_inputs(|| ends(n)).bench_refs(|picks| picks.take_top(n / 20, black_box(&scores)));
}

/// Indices of a tenth of the tokens.
#[divan::bench(args = TOKENS)]
fn indices(bencher: Bencher<'_, '_>, n: usize) {
    let mut picks = ends(n);
    picks.take_all((0..n / 10).map(|i| random(i) as usize % n));
    bencher.bench(|| black_box(&picks).indices());
}

/// A sample of a twentieth of the tokens.
#[divan::bench(args = TOKENS)]
fn draws(bencher: Bencher<'_, '_>, n: usize) {
    let mut picks = ends(n);
    picks.take_top(n / 20, &agreeing(n));
    let order = Order::new(n, &Stream::new(&site(1), 0, 0, 0));
    bencher.with_inputs(|| Vec::with_capacity(n / 20)).bench_refs(|out| {
        black_box(order).draws().fill(&picks, n / 20, out);
    });
}
