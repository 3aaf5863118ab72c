//! Laws of selectors, kept tokens of a transcription of the papers and of kvpress
//! (`tests/golden/prompt-eviction.json`), and bounds on the kept tokens.

use proptest::prelude::*;
use vattention_core::ndarray::Array3;
use vattention_core::{Shape, SoftmaxForm};
use vattention_testkit::{Head, Texture, heads, laws};

use super::*;
use crate::prompt_attention::testing::{pick, prompt, queries};

fn config(size: usize, score: EvictionScore) -> PromptEviction {
    let partition = NonZeroU16::new(6).unwrap();
    PromptEviction { size: Size::Tokens(size), score, sink: 3, partition }
}

const SCORES: [EvictionScore; 4] = [
    EvictionScore::KeyNorm,
    EvictionScore::KeyDifference,
    EvictionScore::Lag,
    EvictionScore::ExpectedAttention,
];

laws!(key_norm, config(9, EvictionScore::KeyNorm));
laws!(key_difference, config(9, EvictionScore::KeyDifference));
laws!(lag, config(20, EvictionScore::Lag));
laws!(expected_attention, config(9, EvictionScore::ExpectedAttention));

/// Prompts of one KV head, each of which ends with an eviction, in the format of
/// `tools/make_state_golden.py`.
#[derive(Deserialize)]
struct Case {
    config: PromptEviction,
    /// Number of tokens at the end of each prompt.
    ends: Vec<usize>,
    key_eighths: Vec<Vec<f32>>,
    value_eighths: Vec<Vec<f32>>,
    /// Last queries of each prompt, `[prompts][group][queries][dim]`.
    query_eighths: Vec<Vec<Vec<Vec<f32>>>>,
    /// Kept tokens after each prompt.
    kept: Vec<Vec<usize>>,
}

fn eighths(rows: &[Vec<f32>]) -> Vec<f32> {
    rows.iter().flatten().map(|x| x / 8.0).collect()
}

#[test]
fn kept_tokens_match_the_golden_file() {
    let cases = include_str!("../../../../tests/golden/prompt-eviction.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let dim = case.key_eighths[0].len();
        let group = case.query_eighths[0].len();
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let (keys, values) = (eighths(&case.key_eighths), eighths(&case.value_eighths));
        let [keys, values] =
            [&keys, &values].map(|rows| Tokens::new(&rows[..], case.key_eighths.len(), dim));
        let mut selector = case.config.build(&site).unwrap();
        let mut first = 0;
        for (i, &end) in case.ends.iter().enumerate() {
            let queries = &case.query_eighths[i];
            let (new_keys, new_values) = (keys.range(first..end), values.range(first..end));
            let new = NewTokens { first, keys: new_keys, values: new_values, classes: None };
            selector.append(&new);
            let flat = queries.iter().flat_map(|queries| eighths(queries)).collect();
            let queries = Array3::from_shape_vec((group, queries[0].len(), dim), flat).unwrap();
            selector.observe(&PromptQueries {
                site: &site,
                queries: queries.view(),
                keys: keys.range(0..end),
                values: values.range(0..end),
                form: SoftmaxForm::default(),
            });
            let mut kept = Picks::new(end);
            selector.live(&mut kept);
            assert_eq!(kept.iter().collect::<Vec<_>>(), case.kept[i], "{:?}, {end}", case.config);
            first = end;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The first tokens and the given number of tokens are kept, and with `lag` at least the last
    /// partition. Later tokens stay.
    #[test]
    fn the_given_number_of_tokens_is_kept(
        head in heads(80), size in 1_usize..60, which in 0_usize..4,
    ) {
        let config = config(size, SCORES[which]);
        let prompt_tokens = head.tokens.div_ceil(2);
        let mut selector = config.build(head.site()).unwrap();
        selector.append(&head.part(0..prompt_tokens));
        selector.observe(&prompt(&head, prompt_tokens, queries(&head, 1).view()));
        let kept = pick(&*selector, &head, prompt_tokens);
        let least = size.min(prompt_tokens);
        if config.score == EvictionScore::Lag {
            prop_assert!(kept.len() >= least);
            let last = prompt_tokens - prompt_tokens.min(6);
            prop_assert!(least == size || kept.len() == prompt_tokens);
            prop_assert!((last..prompt_tokens).all(|token| kept.contains(&token)));
        } else {
            prop_assert_eq!(kept.len(), least);
        }
        prop_assert!((0..least.min(3)).all(|token| kept.contains(&token)));
        selector.append(&head.part(prompt_tokens..head.tokens));
        let later = pick(&*selector, &head, head.tokens);
        let expected: Vec<usize> = kept.into_iter().chain(prompt_tokens..head.tokens).collect();
        prop_assert_eq!(later, expected);
    }
}

/// Scores without queries do not depend on them.
#[test]
fn only_expected_attention_depends_on_the_queries() {
    let head = Head::new(80, 8, 5, Texture::Gaussian);
    for score in SCORES {
        let keep = |queries: &Array3<f32>| {
            let mut selector = config(20, score).build(head.site()).unwrap();
            selector.append(&head.part(0..80));
            selector.observe(&prompt(&head, 80, queries.view()));
            pick(&*selector, &head, 80)
        };
        let queries = queries(&head, 6);
        let same = keep(&queries) == keep(&queries.mapv(|x| 7.0 - 3.0 * x));
        assert_eq!(same, score != EvictionScore::ExpectedAttention, "{score:?}");
    }
}
