//! Laws of selectors, picks of a transcription (`tests/golden/reuse.json`), and the calls that
//! reach the other selector.

use vattention_core::{Shape, Size, Step, Tokens, step::Score};
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::test_picks::pick;
use crate::{H2o, OracleTopK, SnapKv};

fn config(every: u32, of: impl SelectorConfig + 'static) -> Reuse {
    Reuse { every: every.try_into().unwrap(), similarity: None, of: Box::new(of) }
}

fn top(size: usize, score: Score) -> OracleTopK {
    OracleTopK { size: Size::Tokens(size), score }
}

laws!(head_picks, config(3, top(7, Score::Head)));
laws!(group_picks, config(3, top(7, Score::Group)));
laws!(
    similar_queries,
    Reuse { similarity: Some(Fraction::try_from(0.9).unwrap()), ..config(3, top(7, Score::Head)) }
);
laws!(evicted_picks, config(2, H2o { heavy: Size::Tokens(5), recent: Size::Tokens(3) }));
laws!(
    picks_of_a_prompt,
    config(2, serde_json::from_str::<SnapKv>(r#"{"size": 9, "window": 4}"#).unwrap())
);

/// Steps of one KV head, in the format of `tools/make_state_golden.py`.
#[derive(Deserialize)]
struct Case {
    config: Reuse,
    prompt: usize,
    /// `[group][steps][dim]`.
    query_eighths: Vec<Vec<Vec<f32>>>,
    key_eighths: Vec<Vec<f32>>,
    /// Picks of each query head at each step, `[steps][group]`.
    picks: Vec<Vec<Vec<usize>>>,
}

/// Passes feedback to a selector as if each row had read its first token.
fn learn(selector: &mut dyn Selector, step: &Step<'_>) {
    for row in step.rows() {
        let attended = AttentionWeights { tokens: &[0], weights: &[1.0], sink: 0.0 };
        selector.feedback(&row, &attended);
    }
}

#[test]
fn picks_match_the_golden_file() {
    let cases = include_str!("../../../../tests/golden/reuse.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let (group, dim) = (case.query_eighths.len(), case.key_eighths[0].len());
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let keys: Vec<f32> = case.key_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys = Tokens::new(&keys, case.key_eighths.len(), dim);
        let mut selector = case.config.build(&site).unwrap();
        for (i, expected) in case.picks.iter().enumerate() {
            let visible = case.prompt + i + 1;
            let queries = case.query_eighths.iter().flat_map(|steps| &steps[i]);
            let queries: Vec<f32> = queries.map(|x| x / 8.0).collect();
            let keys = keys.range(0..visible);
            let step = Step { step: i as u32, ..Step::new(&site, &queries, keys, keys) };
            for (row, expected) in step.rows().iter().zip(expected) {
                assert_eq!(pick(&*selector, row, &[0, 1]), *expected, "step {i}");
            }
            learn(&mut *selector, &step);
        }
    }
}

/// Runs a step with its number, and returns the picks of both query heads.
fn run_step(
    selector: &mut dyn Selector,
    head: &Head,
    visible: usize,
    number: u32,
) -> [Vec<usize>; 2] {
    let step = Step { step: number, ..head.step(visible) };
    let picks = [0, 1].map(|member| pick(selector, &step.row(member), &[]));
    learn(selector, &step);
    picks
}

/// With `every = 1`, picks are those of the other selector.
#[test]
fn one_step_for_each_selection_changes_nothing() {
    let head = Head::new(60, 8, 3, Texture::Gaussian);
    let mut every = config(1, top(9, Score::Head)).build(head.site()).unwrap();
    let of = top(9, Score::Head).build(head.site()).unwrap();
    for (number, visible) in (40..60).enumerate() {
        let expected = [0, 1].map(|member| pick(&*of, &head.step(visible).row(member), &[]));
        assert_eq!(run_step(&mut *every, &head, visible, number as u32), expected);
    }
}

/// A step without feedback is not one whose picks are read again, and a fork reads its own picks.
#[test]
fn only_steps_that_ended_are_reused() {
    let head = Head::new(60, 8, 3, Texture::Gaussian);
    let mut selector = config(4, top(9, Score::Head)).build(head.site()).unwrap();
    let row = head.step(40).row(0);
    let first = pick(&*selector, &row, &[]);
    let other = Head::new(60, 8, 4, Texture::Gaussian);
    assert_ne!(pick(&*selector, &other.step(40).row(0), &[]), first, "no step has ended");
    let mut fork = selector.clone();
    let [own, _] = run_step(&mut *selector, &head, 40, 7);
    let [forked, _] = run_step(&mut *fork, &other, 40, 7);
    let later = |selector: &dyn Selector| {
        let step = Step { step: 8, ..head.step(43) };
        pick(selector, &step.row(0), &[])
    };
    let with_new = |picks: Vec<usize>| picks.into_iter().chain(40..43).collect::<Vec<_>>();
    assert_eq!(later(&*selector), with_new(own));
    assert_eq!(later(&*fork), with_new(forked));
    assert_eq!(selector.index_bytes(), 2 * (9 * 4 + 2 * 8 * 4));
}

#[test]
fn cosines_are_averaged_over_the_query_heads() {
    assert_eq!(mean_cosine(&[1.0, 0.0, 3.0, 4.0], &[2.0, 0.0, 4.0, -3.0], 2), 0.5);
    assert_eq!(mean_cosine(&[0.0, 0.0], &[1.0, 0.0], 2), 0.0);
}
