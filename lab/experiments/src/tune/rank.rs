//! Which candidates go on, and which is best.

use std::cmp::Ordering;

use super::TuningGoal;
use crate::measured::front;

/// The share that is read, and the mean error.
pub(crate) type RankPlace = (f64, f64);

/// The numbers of those that go on: for each goal the `count` best; without goals, front after front, each whole, until there
/// are `count`.
pub(crate) fn survivors(places: &[RankPlace], goals: &[TuningGoal], count: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for goal in goals {
        let mut ranked: Vec<usize> = (0..places.len()).collect();
        ranked.sort_by(|&a, &b| rank(places[a], places[b], *goal));
        chosen.extend(&ranked[..count.min(ranked.len())]);
    }
    while goals.is_empty() && chosen.len() < count.min(places.len()) {
        let rest: Vec<usize> = (0..places.len()).filter(|i| !chosen.contains(i)).collect();
        let of_rest: Vec<RankPlace> = rest.iter().map(|&i| places[i]).collect();
        let next = rest.iter().zip(front(&of_rest)).filter(|(_, is_front)| *is_front);
        let next: Vec<usize> = next.map(|(&i, _)| i).collect();
        if next.is_empty() {
            break;
        }
        chosen.extend(next);
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// The number of the best, and whether it meets the goal.
pub(crate) fn best(places: &[RankPlace], goal: TuningGoal) -> Option<(usize, bool)> {
    let best = (0..places.len()).min_by(|&a, &b| rank(places[a], places[b], goal))?;
    Some((best, goal.is_met(places[best].0, places[best].1)))
}

/// Those that meet the goal first, the better one before; then those that come nearer to it.
fn rank(a: RankPlace, b: RankPlace, goal: TuningGoal) -> Ordering {
    let key = |(read, error): RankPlace| {
        let meets = goal.is_met(read, error);
        let by_error = matches!(goal, TuningGoal::Density(_)) == meets;
        let (first, second) = if by_error { (error, read) } else { (read, error) };
        (!meets, first, second)
    };
    let ((a_fails, a1, a2), (b_fails, b1, b2)) = (key(a), key(b));
    a_fails.cmp(&b_fails).then(a1.total_cmp(&b1)).then(a2.total_cmp(&b2))
}
