//! Laws of selectors, scores of a transcription (`tests/golden/ark-vale.json`), and boxes of one
//! key.

use vattention_core::{Shape, Step};
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::OracleTopK;
use crate::test_picks::pick;

fn config(page: usize, score: Score) -> ArkVale {
    ArkVale { size: Size::Tokens(7), page: NonZeroUsize::new(page).unwrap(), score }
}

laws!(head_scores, config(16, Score::Head));
laws!(group_scores, config(5, Score::Group));
laws!(one_token_per_page, config(1, Score::Head));

/// One KV head in the file that `tools/make_retrieval_golden.py` writes.
#[derive(Deserialize)]
struct Case {
    config: ArkVale,
    query_eighths: Vec<Vec<f32>>,
    key_eighths: Vec<Vec<f32>>,
    taken: Vec<usize>,
    /// Scores of the pages for each query head, or for the group.
    scores: Vec<Vec<f32>>,
    /// Picks of each query head.
    picks: Vec<Vec<usize>>,
}

#[test]
fn scores_and_picks_match_the_golden_file() {
    let cases = include_str!("../../../../tests/golden/ark-vale.json");
    let cases: Vec<Case> = serde_json::from_str(cases).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let (group, dim) = (case.query_eighths.len(), case.query_eighths[0].len());
        let shape = Shape { query_heads: group, kv_heads: 1, head_dim: dim, value_dim: dim };
        let site = Site { seed: 0, sequence: 0, layer: 0, kv_head: 0, shape };
        let queries: Vec<f32> = case.query_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys: Vec<f32> = case.key_eighths.concat().iter().map(|x| x / 8.0).collect();
        let keys = Tokens::new(&keys, case.key_eighths.len(), dim);
        let mut selector = case.config.build_selector(dim);
        selector.append(&NewTokens { first: 0, keys, values: keys, classes: None });
        let step = Step::new(&site, &queries, keys, keys);
        for (member, row) in step.rows().iter().enumerate() {
            let scores = selector.page_scores(row);
            assert_eq!(scores.len(), case.scores[member].len());
            for (score, expected) in scores.iter().zip(&case.scores[member]) {
                assert!((score - expected).abs() < 1e-4, "{score}, not {expected}");
            }
            assert_eq!(pick(&selector, row, &case.taken), case.picks[member]);
        }
    }
}

/// The box of one key is the key, so that scores are logits.
#[test]
fn pages_of_one_token_give_the_largest_logits() {
    let head = Head::new(50, 8, 2, Texture::Gaussian);
    let mut selector = config(1, Score::Head).build_selector(8);
    selector.append(&head.part(0..50));
    for row in head.step(50).rows() {
        let exact = OracleTopK { size: Size::Tokens(7), score: Score::Head };
        let exact = exact.build(head.site()).unwrap();
        assert_eq!(pick(&selector, &row, &[3, 4]), pick(&*exact, &row, &[3, 4]));
    }
}
