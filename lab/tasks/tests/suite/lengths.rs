//! Tests that texts of RULER's tasks are as long as possible, at all lengths.

use std::cell::Cell;

use crate::common::{SYNTHETIC, assert_right, count, needles, taken};
use proptest::prelude::*;
use vattention_tasks::{Case, Error, Task, Texts};

fn case(task: Task, tokens: usize, seed: u64) -> Case {
    Texts::ruler().case(task, tokens, seed, &count).unwrap()
}

#[test]
fn texts_are_as_long_as_possible() {
    let letters = |text: &str| text.len().div_ceil(4);
    for task in SYNTHETIC {
        for tokens in [1000, 1500, 4096, 20000] {
            let size = taken(&case(task, tokens, 9), count);
            assert!(size <= tokens && size * 100 >= tokens * 95, "{task}: {size} of {tokens}");
            let by_letters = Texts::ruler().case(task, tokens, 9, &letters).unwrap();
            let size = taken(&by_letters, letters);
            assert!(size <= tokens && size * 100 >= tokens * 95, "{task}: {size} of {tokens}");
        }
    }
}

#[test]
fn texts_are_counted_few_times() {
    for task in SYNTHETIC {
        let calls = Cell::new(0);
        let long = |text: &str| {
            calls.set(calls.get() + usize::from(text.len() > 30_000));
            count(text)
        };
        Texts::ruler().case(task, 32768, 1, &long).unwrap();
        assert!((1..=12).contains(&calls.get()), "{task}: {}", calls.get());
    }
}

#[test]
fn errors_of_short_limits_name_the_least() {
    for task in SYNTHETIC {
        let refused = Texts::ruler().case(task, 40, 0, &count).unwrap_err();
        let Error::TooShort { least, .. } = refused else { panic!("{refused}") };
        assert_eq!(
            refused.to_string(),
            format!("`{task}` does not fit in 40 tokens; expected {least} or more")
        );
    }
}

#[test]
fn the_shortest_texts_are_right() {
    for task in SYNTHETIC {
        let fits = |tokens: &usize| Texts::ruler().case(task, *tokens, 0, &count).is_ok();
        let least = (60..4096).find(fits).unwrap();
        (least..least + 80).for_each(|tokens| assert_right(task, &case(task, tokens, 0)));
    }
}

#[test]
fn unusual_counts_terminate() {
    for task in SYNTHETIC {
        assert!(Texts::ruler().case(task, 500, 0, &|_| 0).is_ok(), "{task}");
        assert!(Texts::ruler().case(task, 500, 0, &|_| usize::MAX).is_err(), "{task}");
    }
    let most = Texts::ruler().case(Task::NiahMultikey2, 1_000_000, 0, &|_| 1).unwrap();
    assert_eq!(needles(&most.context).len(), 404 * 952 / 2, "half of the keys there are");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn every_seed_and_length_can_be_solved(
        task in proptest::sample::select(&SYNTHETIC[..]),
        tokens in 256usize..4096,
        seed: u64,
    ) {
        match Texts::ruler().case(task, tokens, seed, &count) {
            Ok(case) => {
                assert_right(task, &case);
                let size = taken(&case, count);
                prop_assert!(size <= tokens);
                prop_assert!(tokens < 1000 || size * 100 >= tokens * 95);
            }
            Err(refused) => {
                let Error::TooShort { least, .. } = refused else { panic!("{refused}") };
                prop_assert!(tokens < least && least < 700, "{refused}");
            }
        }
    }
}
