//! Choice of the best candidates among the measured ones.

use std::collections::BTreeMap;

use super::rank::{TuningPoint, select_best};
use super::{BestCandidate, Candidate, TriedCandidate, TuningGoal};
use crate::measured::front;

/// Returns the rank of each method: the order in which methods appear among the candidates.
pub(super) fn rank_methods(candidates: &[Candidate]) -> BTreeMap<&str, usize> {
    let mut order = BTreeMap::new();
    for candidate in candidates {
        let next = order.len();
        order.entry(&candidate.method[..]).or_insert(next);
    }
    order
}

/// Marks the Pareto front among the candidates that reached the last rung.
pub(super) fn mark_front(tried: &mut [TriedCandidate], last: usize) {
    let mut finalists: Vec<&mut TriedCandidate> =
        tried.iter_mut().filter(|tried| tried.rung == last).collect();
    let points: Vec<TuningPoint> = finalists.iter().map(|tried| tried.score.point()).collect();
    for (tried, is_front) in finalists.iter_mut().zip(front(&points)) {
        tried.front = is_front;
    }
}

/// Returns the best candidate of each method for each goal; without goals, the Pareto front.
pub(super) fn find_best(
    tried: &[TriedCandidate],
    goals: &[TuningGoal],
    last: usize,
    order: &BTreeMap<&str, usize>,
) -> Vec<BestCandidate> {
    if goals.is_empty() {
        let front = tried.iter().enumerate().filter(|(_, one)| one.front);
        let best = |(i, one): (usize, &TriedCandidate)| BestCandidate {
            method: one.method.clone(),
            goal: None,
            tried: Some(i),
            nearest: None,
            held_out: None,
        };
        return front.map(best).collect();
    }
    let mut methods: Vec<&str> = order.keys().copied().collect();
    methods.sort_by_key(|method| order[method]);
    let mut bests = Vec::new();
    for method in methods {
        for &goal in goals {
            let is_eligible = |tried: &TriedCandidate| {
                let for_goal = tried.density.is_none() || tried.density == goal.density();
                tried.method == *method && tried.rung == last && for_goal
            };
            let eligible: Vec<usize> =
                (0..tried.len()).filter(|&i| is_eligible(&tried[i])).collect();
            let points: Vec<TuningPoint> =
                eligible.iter().map(|&i| tried[i].score.point()).collect();
            let Some((i, meets)) = select_best(&points, goal) else { continue };
            let number = Some(eligible[i]);
            bests.push(BestCandidate {
                method: method.into(),
                goal: Some(goal),
                tried: number.filter(|_| meets),
                nearest: number.filter(|_| !meets),
                held_out: None,
            });
        }
    }
    bests
}
