//! The laws of samplers, and tests of the strata and of the allocation of draws.

use proptest::prelude::*;
use vattention_core::{Shape, Site, step::Stream};
use vattention_testkit::heads;

use super::*;

vattention_testkit::sampler_laws!(default, Stratified { base: Size::Tokens(16) });

fn stream() -> Stream {
    let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
    Stream::new(&Site { seed: 7, sequence: 0, layer: 0, kv_head: 0, shape }, 0, 0, 0)
}

/// Picks of the twentieth of the tokens with the largest `scores`, which are stored. Without scores
/// no token is picked.
fn picks(visible: usize, scores: Option<&[f32]>) -> Picks {
    let mut picks = Picks::new(visible);
    picks.store_scores();
    if let Some(scores) = scores {
        picks.take_top(visible / 20, scores);
    }
    picks
}

#[test]
fn neighbours_are_adjacent_in_level_or_in_block() {
    for (tokens, lacking) in [(4000, 0), (20, 12)] {
        let strata = DisjointStrata::new(&Picks::new(tokens), &stream());
        let sizes: Vec<usize> = strata.counts().map(|(size, _)| size).collect();
        assert_eq!(sizes.iter().filter(|&&size| size == 0).count(), lacking);
        for (a, neighbours) in strata.neighbours().into_iter().enumerate() {
            for (b, &size) in sizes.iter().enumerate() {
                let apart = (a / 4).abs_diff(b / 4) + (a % 4).abs_diff(b % 4);
                assert_eq!(neighbours.contains(&b), apart == 1 && size > 0, "{a} and {b}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The strata partition the residual. Scores do not rise from one level to the next, and tokens
    /// ascend from one block of a level to the next.
    #[test]
    fn strata_are_levels_of_score_and_blocks_of_position(
        head in heads(400),
        scores in prop::option::of(prop::collection::vec(0..9_u8, 400)),
    ) {
        let scores: Option<Vec<f32>> =
            scores.map(|scores| scores[..head.tokens].iter().map(|&s| f32::from(s)).collect());
        let picks = picks(head.tokens, scores.as_deref());
        let mut strata = DisjointStrata::new(&picks, &stream());
        let all = strata.allocate(head.tokens);
        let mut drawn: Vec<usize> =
            strata.draw(&all).into_iter().map(|(_, token)| token as usize).collect();
        drawn.sort_unstable();
        prop_assert!(drawn.into_iter().eq(picks.residual()));
        let score = |token: u32| scores.as_ref().map_or(0.0, |scores| scores[token as usize]);
        let members: Vec<Vec<u32>> = strata.iter().map(|stratum| stratum.visited.clone()).collect();
        for level in members.chunks(4) {
            for pair in level.windows(2) {
                prop_assert!(pair[0].iter().max() < pair[1].iter().min() || pair[1].is_empty());
            }
        }
        let levels: Vec<Vec<u32>> = members.chunks(4).map(<[_]>::concat).collect();
        prop_assert_eq!(levels.len(), 8);
        for pair in levels.windows(2) {
            let least = pair[0].iter().map(|&t| score(t)).fold(f32::INFINITY, f32::min);
            prop_assert!(pair[1].iter().all(|&t| score(t) <= least));
            prop_assert!(pair[0].len().abs_diff(pair[1].len()) <= 1);
        }
    }

    /// The requested number of tokens is drawn, or two of each stratum.
    #[test]
    fn the_requested_number_of_tokens_is_drawn(head in heads(400), share in 0.0_f64..1.0) {
        let picks = picks(head.tokens, None);
        let strata = DisjointStrata::new(&picks, &stream());
        let n_s = head.tokens - picks.len();
        let size = (share * n_s as f64) as usize;
        let draws = strata.allocate(size);
        let least: usize = strata.iter().map(|stratum| stratum.size.min(2)).sum();
        let drawn: usize = draws.iter().sum();
        // The draws of strata with equal shares are rounded up at the same size.
        prop_assert!(drawn >= size && drawn <= least.max(size) + 32, "{drawn} of {size}");
        prop_assert!(draws.iter().zip(strata.iter()).all(|(&n, stratum)| n <= stratum.size));
    }
}
