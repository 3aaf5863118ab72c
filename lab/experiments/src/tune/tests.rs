//! Properties of the ranking and of the survivors of a rung.

use proptest::prelude::*;
use vattention_core::Fraction;

use super::TuningGoal;
use super::rank::{TuningPoint, select_best, select_survivors};

fn density(share: f64) -> TuningGoal {
    TuningGoal::Density(Fraction::try_from(share).unwrap())
}

/// Generates points on a coarse lattice, so that many are equal in one coordinate or in both.
fn points() -> impl Strategy<Value = Vec<TuningPoint>> {
    let number = (1..20_u32).prop_map(|n| f64::from(n) / 20.0);
    prop::collection::vec((number.clone(), number), 1..30)
}

fn goals() -> impl Strategy<Value = Vec<TuningGoal>> {
    let share = || (1..20_u32).prop_map(|n| f64::from(n) / 20.0);
    let goal = prop_oneof![share().prop_map(density), share().prop_map(TuningGoal::Error)];
    prop::collection::vec(goal, 0..4)
}

fn beats(a: TuningPoint, b: TuningPoint) -> bool {
    a.0 <= b.0 && a.1 <= b.1 && a != b
}

/// Returns the points of the survivors, sorted.
fn survivor_points(points: &[TuningPoint], goals: &[TuningGoal], count: usize) -> Vec<TuningPoint> {
    let mut survivors: Vec<TuningPoint> =
        select_survivors(points, goals, count).into_iter().map(|i| points[i]).collect();
    survivors.sort_by(|a, b| a.partial_cmp(b).unwrap());
    survivors
}

proptest! {
    #[test]
    fn a_candidate_that_beats_all_others_survives_and_is_best(
        mut others in points(),
        goals in goals(),
        count in 1..30_usize,
        index in 0..30_usize,
    ) {
        let winner = (0.01, 0.01);
        let index = index.min(others.len());
        others.insert(index, winner);
        prop_assert!(select_survivors(&others, &goals, count).contains(&index));
        for goal in goals {
            prop_assert_eq!(select_best(&others, goal).unwrap(), (index, goal.is_met(0.01, 0.01)));
        }
    }

    #[test]
    fn the_best_for_a_goal_survives_and_no_candidate_that_meets_it_is_better(
        points in points(),
        goals in goals(),
        count in 1..30_usize,
    ) {
        let survivors = select_survivors(&points, &goals, count);
        for goal in goals {
            let (i, meets) = select_best(&points, goal).unwrap();
            prop_assert!(survivors.iter().any(|&k| points[k] == points[i]));
            let (read, error) = points[i];
            prop_assert_eq!(meets, goal.is_met(read, error));
            let meets_goal = |point: &&TuningPoint| goal.is_met(point.0, point.1);
            let met: Vec<TuningPoint> = points.iter().filter(meets_goal).copied().collect();
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
                prop_assert!(!better, "{:?} before {:?} at {}", other, points[i], goal);
            }
        }
    }

    #[test]
    fn without_goals_no_candidate_survives_before_one_that_beats_it(
        points in points(),
        count in 1..30_usize,
    ) {
        let survivors = select_survivors(&points, &[], count);
        prop_assert!(survivors.len() >= count.min(points.len()));
        for (i, &place) in points.iter().enumerate() {
            let beaten = points.iter().any(|&other| beats(other, place));
            prop_assert!(beaten || survivors.contains(&i), "the front survives");
            if survivors.contains(&i) {
                let beating = (0..points.len()).filter(|&j| beats(points[j], place));
                prop_assert!(beating.into_iter().all(|j| survivors.contains(&j)));
            }
        }
    }

    #[test]
    fn the_order_of_candidates_changes_nothing(
        (points, shuffled) in points().prop_flat_map(|p| (Just(p.clone()), Just(p).prop_shuffle())),
        goals in goals(),
        count in 1..30_usize,
    ) {
        let [in_order, in_other_order] =
            [&points, &shuffled].map(|points| survivor_points(points, &goals, count));
        prop_assert_eq!(in_order, in_other_order);
        for goal in goals {
            let place = |all: &[TuningPoint]| all[select_best(all, goal).unwrap().0];
            prop_assert_eq!(place(&points), place(&shuffled));
        }
    }

    #[test]
    fn all_candidates_survive_if_the_count_is_their_number(points in points(), goals in goals()) {
        let survivors = select_survivors(&points, &goals, points.len());
        prop_assert_eq!(survivors, (0..points.len()).collect::<Vec<_>>());
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

/// A candidate meets a density goal up to 2 % above the limit; if no candidate does, the nearest is
/// returned.
#[test]
fn a_density_is_a_limit() {
    let points = [(0.2, 0.001), (0.101, 0.3), (0.05, 0.5), (0.103, 0.1)];
    assert_eq!(select_best(&points, density(0.1)), Some((1, true)));
    assert_eq!(select_best(&points, density(0.01)), Some((2, false)));
    assert_eq!(select_best(&points, TuningGoal::Error(0.2)), Some((3, true)));
    assert_eq!(select_best(&[], density(0.1)), None);
}
