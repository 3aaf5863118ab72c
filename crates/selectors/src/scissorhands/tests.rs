//! The laws, algorithm 2 as transcribed (`tests/golden/scissorhands.json`), and what is kept of a stream.

use proptest::prelude::*;
use vattention_core::ndarray::{Array3, s};
use vattention_core::{Shape, Step, Tokens};
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::learned::testing::picked;

fn config(size: usize, recent: usize, history: u16) -> Scissorhands {
    let [size, recent] = [size, recent].map(Size::Tokens);
    Scissorhands { size, recent, history: history.try_into().unwrap(), drop: half() }
}

laws!(by_count, config(9, 3, 5));
laws!(by_share, Scissorhands { size: Size::Share(half()), ..config(1, 3, 70) });

/// One KV head, its prompt and the steps after it, as `tools/make_selectors_golden.py` writes it.
#[derive(Deserialize)]
struct Case {
    config: Scissorhands,
    prompt: usize,
    /// `[group][last queries of the prompt, steps][dim]`
    query_eighths: Vec<Vec<Vec<f32>>>,
    key_eighths: Vec<Vec<f32>>,
    /// After the prompt and after each step.
    kept: Vec<Vec<usize>>,
}

impl Case {
    fn queries(&self) -> Array3<f32> {
        let of = &self.query_eighths;
        let flat = of.iter().flatten().flatten().map(|x| x / 8.0).collect();
        Array3::from_shape_vec((of.len(), of[0].len(), of[0][0].len()), flat).unwrap()
    }
}

#[test]
fn golden_what_is_kept_after_each_step() {
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/golden/scissorhands.json")).unwrap();
    assert_eq!(cases.len(), 3);
    for case in &cases {
        let queries = case.queries();
        let (group, rows, dim) = queries.dim();
        let keys: Vec<f32> = case.key_eighths.iter().flatten().map(|x| x / 8.0).collect();
        let tokens =
            |first: usize, end: usize| Tokens::new(&keys[first * dim..end * dim], end - first, dim);
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let mut worker = case.config.build(&site).unwrap();
        let new = |first, end| {
            let keys = tokens(first, end);
            NewTokens { first, keys, values: keys, classes: None }
        };
        worker.append(&new(0, case.prompt));
        let last = rows - (case.kept.len() - 1);
        let keys = tokens(0, case.prompt);
        let of_prompt = queries.slice(s![.., ..last, ..]);
        worker.observe(&PromptQueries { site: &site, queries: of_prompt, keys, values: keys });
        for (i, kept) in case.kept.iter().enumerate() {
            let visible = case.prompt + i;
            let keys = tokens(0, visible);
            let query = queries.slice(s![.., last + i.max(1) - 1, ..]).to_owned();
            let queries = query.as_slice().unwrap();
            let step = Step { site: &site, queries, keys, values: keys, visible, step: 0 };
            if i > 0 {
                worker.append(&new(visible - 1, visible));
                // Everything is read, as if a sample of what was evicted followed.
                let all: Vec<u32> = (0..visible as u32).collect();
                for row in step.rows() {
                    let weights: Vec<f32> = (0..visible).map(|t| row.logit(t).exp()).collect();
                    worker.feedback(&row, &Attended { tokens: &all, weights: &weights });
                }
            }
            let mut picks = Picks::new(visible);
            worker.select(&step.row(0), &mut picks);
            assert_eq!(picks.iter().collect::<Vec<_>>(), *kept, "{:?}, step {i}", case.config);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// Never more than `size` after a step, never the recent ones evicted, and nothing comes back.
    #[test]
    fn what_is_kept_is_bounded_and_never_comes_back(size in 4_usize..20, recent in 1_usize..4, history in 1_u16..90, seed in 0_u64..1000) {
        let head = Head::new(80, 2, seed, Texture::Gaussian);
        let mut worker = ScissorhandsSelector::new(config(size, recent, history), head.site());
        let mut gone: Vec<usize> = Vec::new();
        for tokens in 1..=80 {
            worker.append(&head.part(tokens - 1..tokens));
            let read: Vec<u32> = (0..tokens as u32).collect();
            for row in head.step(tokens).rows() {
                let weights: Vec<f32> = (0..tokens).map(|token| row.logit(token).exp()).collect();
                worker.feedback(&row, &Attended { tokens: &read, weights: &weights });
            }
            let kept = picked(&worker, &head, tokens);
            prop_assert!(kept.len() <= size.max(recent));
            prop_assert!((tokens.saturating_sub(recent)..tokens).all(|token| kept.contains(&token)));
            prop_assert!(gone.iter().all(|token| !kept.contains(token)));
            gone = (0..tokens).filter(|token| !kept.contains(token)).collect();
        }
    }
}

/// A token that was low in many rows long ago, and in none since, is as good as one that never was.
#[test]
fn only_the_last_rows_count() {
    let mut low = History::new(70);
    low.resize(3);
    (0..100).for_each(|_| low.add([true, false].into_iter()));
    assert_eq!([0, 1, 2].map(|place| low.count(place)), [70, 0, 0]);
    (0..69).for_each(|_| low.add([false, true].into_iter()));
    assert_eq!([0, 1, 2].map(|place| low.count(place)), [1, 69, 0]);
    low.add([false, false].into_iter());
    assert_eq!([0, 1, 2].map(|place| low.count(place)), [0, 69, 0]);
    assert_eq!(low.bytes(), 3 * 16);
}
