//! Laws of selectors, outputs of a transcription of algorithm 2
//! (`tests/golden/scissorhands.json`), and bounds on the kept tokens.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::prompt_attention::testing::{GoldenStream, check_stream, pick, read_all};

fn config(size: usize, recent: usize, history: u16) -> Scissorhands {
    let [size, recent] = [size, recent].map(Size::Tokens);
    Scissorhands { size, recent, history: history.try_into().unwrap(), drop: half() }
}

laws!(size_in_tokens, config(9, 3, 5));
laws!(size_as_share, Scissorhands { size: Size::Share(half()), ..config(1, 3, 70) });

#[test]
fn kept_tokens_match_the_golden_file() {
    #[derive(Deserialize)]
    struct Case {
        config: Scissorhands,
        #[serde(flatten)]
        stream: GoldenStream,
    }
    let cases: Vec<Case> =
        serde_json::from_str(include_str!("../../../../tests/golden/scissorhands.json")).unwrap();
    assert_eq!(cases.len(), 3);
    for Case { config, stream } in cases {
        check_stream(&stream, &mut *config.build(&stream.site()).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    /// After a step, at most `size` tokens are kept, the recent ones among them, and evicted tokens
    /// never come back.
    #[test]
    fn kept_tokens_are_bounded_and_evictions_final(
        size in 4_usize..20,
        recent in 1_usize..4,
        history in 1_u16..90,
        seed in 0_u64..1000,
    ) {
        let head = Head::new(80, 2, seed, Texture::Gaussian);
        let mut selector = ScissorhandsSelector::new(config(size, recent, history), head.site());
        let mut evicted: Vec<usize> = Vec::new();
        for tokens in 1..=80 {
            selector.append(&head.part(tokens - 1..tokens));
            read_all(&mut selector, &head.step(tokens));
            let kept = pick(&selector, &head, tokens);
            prop_assert!(kept.len() <= size.max(recent));
            let mut last = tokens.saturating_sub(recent)..tokens;
            prop_assert!(last.all(|token| kept.contains(&token)));
            prop_assert!(evicted.iter().all(|token| !kept.contains(token)));
            evicted = (0..tokens).filter(|token| !kept.contains(token)).collect();
        }
    }
}

/// Rows before the recorded ones no longer count.
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
