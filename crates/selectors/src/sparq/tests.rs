//! Laws of selectors, transcribed picks of the authors' code (`tests/golden/sparq.json`), and
//! definition of the scores.

use proptest::prelude::*;
use vattention_core::{Shape, SoftmaxForm, Step, Tokens};
use vattention_testkit::{Head, Texture, heads};

use super::*;
use crate::OracleTopK;
use crate::test_picks::pick;

fn config(channels: Option<usize>, score: Score) -> SparQ {
    let channels = channels.map(|channels| NonZeroUsize::new(channels).unwrap());
    SparQ { size: Size::Tokens(7), channels, score }
}

vattention_testkit::laws!(default_channels, config(None, Score::Head));
vattention_testkit::laws!(group_scores, config(Some(2), Score::Group));

fn build_filled(channels: usize, score: Score, head: &Head) -> SparqSelector {
    let mut selector = config(Some(channels), score).build_selector(head.site()).unwrap();
    selector.append(&head.part(0..head.tokens));
    selector
}

/// One KV head in the file that `tools/make_selectors_golden.py` writes.
#[derive(Deserialize)]
struct Case {
    query_eighths: Vec<Vec<f32>>,
    key_eighths: Vec<Vec<f32>>,
    channels: Vec<usize>,
    size: usize,
    window: usize,
    scores: Vec<f64>,
    picks: Vec<usize>,
}

#[test]
fn a_groups_picks_match_the_authors_code() {
    let cases = include_str!("../../../../tests/golden/sparq.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let (group, dim, tokens) =
            (case.query_eighths.len(), case.query_eighths[0].len(), case.key_eighths.len());
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let scale = shape.default_scale() / 8.0;
        let queries: Vec<f32> = case.query_eighths.concat().iter().map(|x| x * scale).collect();
        let keys: Vec<f32> = case.key_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys = Tokens::new(&keys, tokens, dim);
        let size = Size::Tokens(case.size - case.window);
        let config = SparQ { size, ..config(Some(case.channels.len()), Score::Group) };
        let mut selector = config.build_selector(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let (visible, step) = (tokens, 0);
        let row = Step { visible, step, ..Step::new(&site, &queries, keys, keys) }.row(0);
        assert_eq!(selector.largest(&magnitudes(&row)), case.channels);
        for (score, expected) in selector.scores(&row).into_iter().zip(&case.scores) {
            assert!((f64::from(score) - expected.ln()).abs() < 1e-4, "{score} for {expected}");
        }
        let window: Vec<usize> = (tokens - case.window..tokens).collect();
        assert_eq!(pick(&selector, &row, &window), case.picks);
        if group == 1 {
            let alone = SparQ { score: Score::Head, ..config };
            let mut alone = alone.build_selector(&site).unwrap();
            alone.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            assert_eq!(pick(&alone, &row, &window), case.picks);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// A head's score is the scaled product over the query's largest channels, and no other channel
    /// is larger.
    #[test]
    fn a_score_is_the_product_over_the_largest_channels(
        head in heads(60), channels in 1_usize..=20, visible in 1_usize..=60,
    ) {
        let (channels, visible) = (channels.min(head.dim), visible.min(head.tokens));
        let selector = build_filled(channels, Score::Head, &head);
        let row = head.step(visible).row(1);
        let query = row.query();
        let largest = selector.largest(query);
        prop_assert_eq!(largest.len(), channels);
        let least = largest.iter().map(|&c| query[c].abs()).fold(f32::INFINITY, f32::min);
        prop_assert!((0..head.dim).all(|c| largest.contains(&c) || query[c].abs() <= least));
        let magnitude = |c: usize| f64::from(query[c].abs());
        let all: f64 = (0..head.dim).map(magnitude).sum();
        let some: f64 = largest.iter().copied().map(magnitude).sum();
        let mut key = vec![0.0; head.dim];
        for (token, score) in selector.scores(&row).into_iter().enumerate() {
            row.keys().copy_row(token, &mut key);
            let terms = largest.iter().map(|&c| f64::from(query[c]) * f64::from(key[c]));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            let factor = (all / some).sqrt();
            prop_assert!((f64::from(score) - factor * sum).abs() <= factor * size / 200.0 + 1e-5);
        }
    }

    /// The shares of a group sum to the number of its heads, for any number of visible tokens.
    #[test]
    fn the_shares_of_a_group_sum_to_its_heads(head in heads(60), visible in 1_usize..=60) {
        let visible = visible.min(head.tokens);
        let scores = build_filled(1, Score::Group, &head).scores(&head.step(visible).row(0));
        let sum: f64 = scores.into_iter().map(|score| f64::from(score).exp()).sum();
        prop_assert!((sum - 2.0).abs() < 1e-4, "{}", sum);
    }

    /// If nothing is rounded, scores over all channels equal the logits.
    #[test]
    fn all_channels_give_the_oracles_picks(
        keys in prop::collection::vec(-9_i8..=9, 4..400),
        query in prop::collection::vec(-9_i8..=9, 8),
        taken in prop::collection::vec(0_usize..99, 0..9),
    ) {
        let [keys, query] = [keys, query].map(|x| x.into_iter().map(f32::from).collect::<Vec<_>>());
        let count = keys.len() / 4;
        let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 4, value_dim: 4 };
        let site = Site { seed: 1, sequence: 0, layer: 5, kv_head: 0, shape };
        let keys = Tokens::new(&keys[..count * 4], count, 4);
        let (visible, step) = (count, 0);
        let (queries, form) = (&query[..], SoftmaxForm::default());
        let step = Step { visible, step, form, ..Step::new(&site, queries, keys, keys) };
        let mut selector = config(Some(4), Score::Head).build_selector(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let oracle = OracleTopK { size: Size::Tokens(7), score: Score::Head };
        for row in step.rows() {
            prop_assert_eq!(&selector.scores(&row)[..], &*row.scores(Score::Head));
            prop_assert_eq!(pick(&selector, &row, &taken), pick(&oracle, &row, &taken));
        }
    }
}

/// Neither a query of zeros nor a logit far from the others makes a score NaN or infinite.
#[test]
fn scores_are_finite() {
    let shape = Shape { query_heads: 2, kv_heads: 1, head_dim: 2, value_dim: 2 };
    let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
    let keys = [1e4_f32, 0.0, 0.0, 1.0, -1e4, 5.0];
    let keys = Tokens::new(&keys, 3, 2);
    let queries = [0.0, 0.0, 1e3, 1e3];
    let step = Step::new(&site, &queries, keys, keys);
    for score in [Score::Head, Score::Group] {
        let mut selector = config(Some(1), score).build_selector(&site).unwrap();
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        for row in step.rows() {
            assert!(selector.scores(&row).iter().all(|score| score.is_finite()));
        }
    }
}

#[test]
fn an_index_is_two_bytes_per_token_and_number_of_a_key() {
    let head = Head::new(50, 20, 1, Texture::Gaussian);
    assert_eq!(build_filled(3, Score::Head, &head).index_bytes(), 50 * 20 * 2);
    assert_eq!(config(None, Score::Head).build_selector(head.site()).unwrap().channels, 5);
    let error = config(Some(21), Score::Head).build_selector(head.site()).unwrap_err();
    assert_eq!(error, "`channels` is 21: expected at most 20, the channels of a key");
}
