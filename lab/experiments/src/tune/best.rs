//! The best of what was measured.

use std::collections::BTreeMap;

use super::rank::{RankPlace, best};
use super::{Best, Candidate, Tried, TuningGoal};
use crate::measured::front;

/// The place of each method among those given.
pub(super) fn order(candidates: &[Candidate]) -> BTreeMap<&str, usize> {
    let mut order = BTreeMap::new();
    for candidate in candidates {
        let next = order.len();
        order.entry(&candidate.method[..]).or_insert(next);
    }
    order
}

/// Marks what nothing beats among what reached the last rung.
pub(super) fn mark_front(tried: &mut [Tried], last: usize) {
    let mut there: Vec<&mut Tried> = tried.iter_mut().filter(|one| one.rung == last).collect();
    let places: Vec<RankPlace> = there.iter().map(|one| one.score.place()).collect();
    for (one, is_front) in there.iter_mut().zip(front(&places)) {
        one.front = is_front;
    }
}

/// The best of each method for each goal; without goals, the front.
pub(super) fn bests(
    tried: &[Tried],
    goals: &[TuningGoal],
    last: usize,
    order: &BTreeMap<&str, usize>,
) -> Vec<Best> {
    if goals.is_empty() {
        let front = tried.iter().enumerate().filter(|(_, one)| one.front);
        let best = |(i, one): (usize, &Tried)| Best {
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
            let own = |one: &&(usize, &Tried)| {
                let meant = one.1.density.is_none() || one.1.density == goal.density();
                one.1.method == *method && one.1.rung == last && meant
            };
            let all: Vec<(usize, &Tried)> = tried.iter().enumerate().collect();
            let own: Vec<_> = all.iter().filter(own).collect();
            let places: Vec<RankPlace> = own.iter().map(|(_, one)| one.score.place()).collect();
            let Some((i, meets)) = best(&places, goal) else { continue };
            let number = Some(own[i].0);
            bests.push(Best {
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
