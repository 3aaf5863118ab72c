//! The laws, algorithm 2 as transcribed (`tests/golden/scissorhands.json`), and what is kept of a stream.

use proptest::prelude::*;
use vattention_testkit::{Head, Texture, laws};

use super::*;
use crate::learned::testing::{GoldenStream, check_stream, picked, read_all};

fn config(size: usize, recent: usize, history: u16) -> Scissorhands {
    let [size, recent] = [size, recent].map(Size::Tokens);
    Scissorhands { size, recent, history: history.try_into().unwrap(), drop: half() }
}

laws!(by_count, config(9, 3, 5));
laws!(by_share, Scissorhands { size: Size::Share(half()), ..config(1, 3, 70) });

#[test]
fn golden_what_is_kept_after_each_step() {
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
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    /// Never more than `size` after a step, never the recent ones evicted, and nothing comes back.
    #[test]
    fn what_is_kept_is_bounded_and_never_comes_back(size in 4_usize..20, recent in 1_usize..4, history in 1_u16..90, seed in 0_u64..1000) {
        let head = Head::new(80, 2, seed, Texture::Gaussian);
        let mut worker = ScissorhandsSelector::new(config(size, recent, history), head.site());
        let mut gone: Vec<usize> = Vec::new();
        for tokens in 1..=80 {
            worker.append(&head.part(tokens - 1..tokens));
            read_all(&mut worker, &head.step(tokens));
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
