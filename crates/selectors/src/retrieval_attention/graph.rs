//! Graph of keys that are linked by the queries attending to them, and the search for the best
//! keys.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use vattention_core::{Picks, Row, plugin::PromptQueries};

/// Graph of the keys of a prompt.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// Links of each token of the prompt.
    links: Vec<Vec<u32>>,
    /// Tokens at which a search begins.
    entries: Vec<u32>,
}

/// A token and its score. The better token compares as smaller: the one of higher score, and of
/// equal scores the lower token.
#[derive(Clone, Copy, Debug)]
struct GraphCandidate {
    score: f32,
    token: u32,
}

impl Ord for GraphCandidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.score.total_cmp(&self.score).then(self.token.cmp(&other.token))
    }
}

impl PartialOrd for GraphCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for GraphCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for GraphCandidate {}

impl Graph {
    /// Links keys that are among the `neighbours` nearest of the same query, up to `degree` links
    /// per key.
    pub(super) fn new(prompt: &PromptQueries<'_>, neighbours: usize, degree: usize) -> Self {
        let lists = find_nearest(prompt, neighbours);
        let mut links = vec![Vec::new(); prompt.keys.len()];
        let mut link = |token: u32, other: u32| {
            let links: &mut Vec<u32> = &mut links[token as usize];
            if links.len() < degree && !links.contains(&other) {
                links.push(other);
            }
        };
        for rank in 1..neighbours.min(prompt.keys.len()) {
            for list in lists.iter().flatten() {
                for &earlier in &[list[0], list[rank - 1]][..rank.min(2)] {
                    link(earlier, list[rank]);
                    link(list[rank], earlier);
                }
            }
        }
        let last = lists.iter().filter_map(|lists| lists.last());
        Self { entries: last.map(|list| list[0]).collect(), links }
    }

    /// Returns the best visible tokens found by a search that are not picked, at most `beam`, the
    /// best first.
    pub(super) fn search(&self, row: &Row<'_>, beam: usize, picks: &Picks) -> Vec<usize> {
        let mut search = Search::new(row, beam, picks);
        let newest = row.visible().saturating_sub(1) as u32;
        search.meet([newest].into_iter().chain(self.entries.iter().copied()), true);
        while let Some(token) = search.next() {
            let links = self.links.get(token as usize).map_or(&[][..], |links| links);
            let in_text = [token.wrapping_sub(1), token + 1];
            search.meet(links.iter().copied().chain(in_text), false);
        }
        search.best.into_iter().map(|found| found.token as usize).collect()
    }

    /// Links of each token of the prompt.
    #[cfg(test)]
    pub(super) fn links(&self) -> &[Vec<u32>] {
        &self.links
    }

    /// Size of the links in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.links.iter().map(|links| size_of_val(&links[..])).sum()
    }
}

/// Returns the `count` nearest keys of each query, `[group][prompt]`, the nearest first.
fn find_nearest(prompt: &PromptQueries<'_>, count: usize) -> Vec<Vec<Vec<u32>>> {
    let mut scores = vec![0.0; prompt.keys.len()];
    let mut list_nearest = |query: &[f32]| {
        prompt.keys.dots(0..prompt.keys.len(), query, &mut scores);
        let mut all: Vec<GraphCandidate> =
            (0..).zip(&scores).map(|(token, &score)| GraphCandidate { score, token }).collect();
        if count < all.len() {
            all.select_nth_unstable(count);
            all.truncate(count);
        }
        all.sort_unstable();
        all.into_iter().map(|found| found.token).collect()
    };
    let queries = prompt.queries.as_standard_layout();
    let members = queries.outer_iter();
    members
        .map(|member| {
            member
                .outer_iter()
                .map(|query| list_nearest(query.as_slice().expect("a row")))
                .collect()
        })
        .collect()
}

/// State of a best-first search.
struct Search<'a> {
    row: &'a Row<'a>,
    picks: &'a Picks,
    beam: usize,
    met: Vec<bool>,
    /// Tokens met and not yet expanded.
    frontier: BinaryHeap<Reverse<GraphCandidate>>,
    /// Best tokens met that are not picked, at most `beam`.
    best: BTreeSet<GraphCandidate>,
}

impl<'a> Search<'a> {
    fn new(row: &'a Row<'a>, beam: usize, picks: &'a Picks) -> Self {
        let met = vec![false; row.visible()];
        Self { row, picks, beam, met, frontier: BinaryHeap::new(), best: BTreeSet::new() }
    }

    /// Returns the best token to expand; `None` if it is worse than all candidates.
    fn next(&mut self) -> Option<u32> {
        let Reverse(next) = self.frontier.pop()?;
        (!self.is_beaten(next)).then_some(next.token)
    }

    /// Returns true if the search has `beam` candidates that are all better.
    fn is_beaten(&self, candidate: GraphCandidate) -> bool {
        self.best.len() >= self.beam && self.best.last().is_none_or(|&worst| candidate > worst)
    }

    /// Scores the tokens that are visible and were not met before. Unless it is beaten, or if
    /// `always` is true, a token becomes a candidate and is queued for expansion.
    fn meet(&mut self, tokens: impl Iterator<Item = u32>, always: bool) {
        let new: Vec<usize> = tokens
            .map(|token| token as usize)
            .filter(|&token| {
                self.met.get_mut(token).is_some_and(|met| !std::mem::replace(met, true))
            })
            .collect();
        for (&token, score) in new.iter().zip(self.row.logits_of(&new)) {
            let found = GraphCandidate { score, token: token as u32 };
            if always || !self.is_beaten(found) {
                self.frontier.push(Reverse(found));
                self.add_candidate(found);
            }
        }
    }

    /// Adds a token to the candidates, unless it is picked already.
    fn add_candidate(&mut self, found: GraphCandidate) {
        if self.picks.contains(found.token as usize) {
            return;
        }
        self.best.insert(found);
        if self.best.len() > self.beam {
            self.best.pop_last();
        }
    }
}
