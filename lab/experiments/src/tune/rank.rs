//! Ranking of candidates: the survivors of a rung, and the best.

use std::cmp::Ordering;

use super::TuningGoal;
use crate::measured::front;

/// Density and mean error of a candidate.
pub(crate) type TuningPoint = (f64, f64);

/// Returns the indices of the candidates that survive: for each goal the `count` best; without
/// goals, whole Pareto fronts, one after the other, until there are at least `count`.
pub(crate) fn select_survivors(
    points: &[TuningPoint],
    goals: &[TuningGoal],
    count: usize,
) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for goal in goals {
        let mut ranked: Vec<usize> = (0..points.len()).collect();
        ranked.sort_by(|&a, &b| rank(points[a], points[b], *goal));
        chosen.extend(&ranked[..count.min(ranked.len())]);
    }
    while goals.is_empty() && chosen.len() < count.min(points.len()) {
        let rest: Vec<usize> = (0..points.len()).filter(|i| !chosen.contains(i)).collect();
        let rest_points: Vec<TuningPoint> = rest.iter().map(|&i| points[i]).collect();
        let next = rest.iter().zip(front(&rest_points)).filter(|(_, is_front)| *is_front);
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

/// Returns the index of the best candidate, and whether it meets the goal.
pub(crate) fn select_best(points: &[TuningPoint], goal: TuningGoal) -> Option<(usize, bool)> {
    let best = (0..points.len()).min_by(|&a, &b| rank(points[a], points[b], goal))?;
    Some((best, goal.is_met(points[best].0, points[best].1)))
}

/// Orders candidates that meet the goal before the others: the former by the quantity to be
/// minimized, the latter by their distance from the goal.
fn rank(a: TuningPoint, b: TuningPoint, goal: TuningGoal) -> Ordering {
    let key = |(read, error): TuningPoint| {
        let meets = goal.is_met(read, error);
        let by_error = matches!(goal, TuningGoal::Density(_)) == meets;
        let (first, second) = if by_error { (error, read) } else { (read, error) };
        (!meets, first, second)
    };
    let ((a_fails, a1, a2), (b_fails, b1, b2)) = (key(a), key(b));
    a_fails.cmp(&b_fails).then(a1.total_cmp(&b1)).then(a2.total_cmp(&b2))
}
