//! Laws of selectors, outputs of a transcription of the codes (`tests/golden/rotated-codes.json`),
//! and the picks of keys that codes describe exactly.

use vattention_core::{Shape, Step};
use vattention_testkit::{Head, Texture};

use super::*;
use crate::test_picks::pick;

fn config(score: Score) -> RotatedCodesTopK {
    RotatedCodesTopK { size: Size::Tokens(7), score }
}

vattention_testkit::laws!(head_scores, config(Score::Head));
vattention_testkit::laws!(group_scores, config(Score::Group));

fn build_filled(config: &RotatedCodesTopK, head: &Head) -> RotatedCodesSelector {
    let codes = RotatedCodes::new(head.site());
    let mut selector = RotatedCodesSelector { size: config.size, score: config.score, codes };
    selector.append(&head.part(0..head.tokens));
    selector
}

/// One KV head in the file that `tools/make_retrieval_golden.py` writes.
#[derive(Deserialize)]
struct Case {
    seed: u64,
    layer: usize,
    kv_head: usize,
    query_eighths: Vec<Vec<f32>>,
    key_eighths: Vec<Vec<f32>>,
    size: usize,
    taken: Vec<usize>,
    /// Scores of each query head.
    scores: Vec<Vec<f32>>,
    /// Picks of each query head, and picks by the summed scores.
    picks: Vec<Vec<usize>>,
    group_picks: Vec<usize>,
}

impl Case {
    fn site(&self) -> Site {
        let (group, dim) = (self.query_eighths.len(), self.query_eighths[0].len());
        let (query_heads, kv_heads) = (group * (self.kv_head + 1), self.kv_head + 1);
        let shape = Shape { query_heads, kv_heads, head_dim: dim, value_dim: dim };
        let Self { seed, layer, kv_head, .. } = *self;
        Site { seed, sequence: 3, layer, kv_head, shape }
    }
}

#[test]
fn scores_and_picks_match_the_golden_file() {
    let cases = include_str!("../../../../tests/golden/rotated-codes.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let (site, tokens) = (case.site(), case.key_eighths.len());
        let queries: Vec<f32> = case.query_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys: Vec<f32> = case.key_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys = Tokens::new(&keys, tokens, site.shape.head_dim);
        let step = Step::new(&site, &queries, keys, keys);
        let build = |score| {
            let codes = RotatedCodes::new(&site);
            let mut selector = RotatedCodesSelector { size: Size::Tokens(case.size), score, codes };
            selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
            selector
        };
        let (alone, group) = (build(Score::Head), build(Score::Group));
        for (member, row) in step.rows().iter().enumerate() {
            for (score, expected) in alone.scores(row).iter().zip(&case.scores[member]) {
                assert!((score - expected).abs() < 2e-3, "{score}, not {expected}");
            }
            assert_eq!(pick(&alone, row, &case.taken), case.picks[member]);
            assert_eq!(pick(&group, row, &case.taken), case.group_picks);
        }
    }
}

/// Tokens after the last complete block are ranked by their exact logits.
#[test]
fn a_block_that_is_not_complete_is_ranked_by_its_keys() {
    let head = Head::new(60, 20, 7, Texture::Gaussian);
    let selector = build_filled(&config(Score::Head), &head);
    assert_eq!(selector.index_bytes(), 0, "no block is complete");
    for row in head.step(60).rows() {
        let exact = crate::OracleTopK { size: Size::Tokens(7), score: Score::Head };
        let exact = exact.build(head.site()).unwrap();
        assert_eq!(pick(&selector, &row, &[3, 4]), pick(&*exact, &row, &[3, 4]));
    }
}
