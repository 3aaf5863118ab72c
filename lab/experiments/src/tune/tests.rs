//! Laws of halving.

use proptest::prelude::*;
use vattention_core::Fraction;

use super::TuningGoal;
use super::rank::{RankPlace, best, survivors};

fn density(share: f64) -> TuningGoal {
    TuningGoal::Density(Fraction::try_from(share).unwrap())
}

/// Places on a coarse lattice, so that many are equal in one of both or in both.
fn places() -> impl Strategy<Value = Vec<RankPlace>> {
    let number = (1..20_u32).prop_map(|n| f64::from(n) / 20.0);
    prop::collection::vec((number.clone(), number), 1..30)
}

fn goals() -> impl Strategy<Value = Vec<TuningGoal>> {
    let share = || (1..20_u32).prop_map(|n| f64::from(n) / 20.0);
    let goal = prop_oneof![share().prop_map(density), share().prop_map(TuningGoal::Error)];
    prop::collection::vec(goal, 0..4)
}

fn beats(a: RankPlace, b: RankPlace) -> bool {
    a.0 <= b.0 && a.1 <= b.1 && a != b
}

/// The places of those that go on, sorted.
fn surviving(places: &[RankPlace], goals: &[TuningGoal], count: usize) -> Vec<RankPlace> {
    let mut kept: Vec<RankPlace> =
        survivors(places, goals, count).into_iter().map(|i| places[i]).collect();
    kept.sort_by(|a, b| a.partial_cmp(b).unwrap());
    kept
}

proptest! {
    #[test]
    fn what_beats_all_others_goes_on_and_is_best(mut others in places(), goals in goals(), count in 1..30_usize, at in 0..30_usize) {
        let winner = (0.01, 0.01);
        let at = at.min(others.len());
        others.insert(at, winner);
        prop_assert!(survivors(&others, &goals, count).contains(&at));
        for goal in goals {
            prop_assert_eq!(best(&others, goal).unwrap(), (at, goal.is_met(0.01, 0.01)));
        }
    }

    #[test]
    fn the_best_at_a_goal_goes_on_and_nothing_that_meets_it_is_better(places in places(), goals in goals(), count in 1..30_usize) {
        let kept = survivors(&places, &goals, count);
        for goal in goals {
            let (i, meets) = best(&places, goal).unwrap();
            prop_assert!(kept.iter().any(|&k| places[k] == places[i]));
            let (read, error) = places[i];
            prop_assert_eq!(meets, goal.is_met(read, error));
            let met: Vec<RankPlace> = places.iter().filter(|p| goal.is_met(p.0, p.1)).copied().collect();
            prop_assert_eq!(meets, !met.is_empty());
            for other in &met {
                let better = match goal {
                    TuningGoal::Density(density) => {
                        prop_assert!(read <= 1.02 * density.get());
                        other.1 < error
                    }
                    TuningGoal::Error(most) => {
                        prop_assert!(error <= most);
                        other.0 < read
                    }
                };
                prop_assert!(!better, "{:?} before {:?} at {}", other, places[i], goal);
            }
        }
    }

    #[test]
    fn without_goals_nothing_goes_on_before_what_beats_it(places in places(), count in 1..30_usize) {
        let kept = survivors(&places, &[], count);
        prop_assert!(kept.len() >= count.min(places.len()));
        for (i, &place) in places.iter().enumerate() {
            let beaten = places.iter().any(|&other| beats(other, place));
            prop_assert!(beaten || kept.contains(&i), "the front goes on");
            if kept.contains(&i) {
                let beating = (0..places.len()).filter(|&j| beats(places[j], place));
                prop_assert!(beating.into_iter().all(|j| kept.contains(&j)));
            }
        }
    }

    #[test]
    fn the_order_of_candidates_changes_nothing(
        (places, shuffled) in places().prop_flat_map(|p| (Just(p.clone()), Just(p).prop_shuffle())),
        goals in goals(),
        count in 1..30_usize,
    ) {
        prop_assert_eq!(surviving(&places, &goals, count), surviving(&shuffled, &goals, count));
        for goal in goals {
            let place = |all: &[RankPlace]| all[best(all, goal).unwrap().0];
            prop_assert_eq!(place(&places), place(&shuffled));
        }
    }

    #[test]
    fn who_keeps_all_searches_exhaustively(places in places(), goals in goals()) {
        let kept = survivors(&places, &goals, places.len());
        prop_assert_eq!(kept, (0..places.len()).collect::<Vec<_>>());
    }
}

#[test]
fn goals_are_written_as_they_are_read() {
    for text in ["density=0.05", "error=0.01"] {
        assert_eq!(text.parse::<TuningGoal>().unwrap().to_string(), text);
    }
    for (bad, expected) in [
        ("density=10", "10 % is 0.1"),
        ("density", "expected density=SHARE or error=NUMBER"),
        ("error=0", "above 0"),
        ("error=nan", "above 0"),
        ("speed=1", "expected density=SHARE"),
    ] {
        let error = bad.parse::<TuningGoal>().unwrap_err();
        assert!(error.contains(expected), "{bad}: {error}");
    }
}

/// Only what reads hardly more than the density meets it, and of the others the nearest one is told.
#[test]
fn a_density_is_a_limit() {
    let places = [(0.2, 0.001), (0.101, 0.3), (0.05, 0.5), (0.103, 0.1)];
    assert_eq!(best(&places, density(0.1)), Some((1, true)));
    assert_eq!(best(&places, density(0.01)), Some((2, false)));
    assert_eq!(best(&places, TuningGoal::Error(0.2)), Some((3, true)));
    assert_eq!(best(&[], density(0.1)), None);
}
