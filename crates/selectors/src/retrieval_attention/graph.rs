//! Keys linked by the queries that attend to them, and the search for the best ones.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use vattention_core::{Picks, Row, plugin::PromptQueries};

/// The keys of a prompt, each with its links.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// Of each token of the prompt.
    links: Vec<Vec<u32>>,
    /// Where a search begins.
    entries: Vec<u32>,
}

/// A token by its score. The better one, of a higher score or of equals the lower token, is the smaller.
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
    /// Links the keys that are among the `neighbours` nearest of the same query, up to `degree` links of a key.
    pub(super) fn new(prompt: &PromptQueries<'_>, neighbours: usize, degree: usize) -> Self {
        let lists = nearest(prompt, neighbours);
        let mut links = vec![Vec::new(); prompt.keys.len()];
        let mut link = |one: u32, other: u32| {
            let links: &mut Vec<u32> = &mut links[one as usize];
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

    /// The `beam` best visible tokens that are not picked and that a search finds, the best first.
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

    /// The links of each token of the prompt.
    #[cfg(test)]
    pub(super) fn links(&self) -> &[Vec<u32>] {
        &self.links
    }

    /// Bytes of the links.
    pub(super) fn bytes(&self) -> usize {
        self.links.iter().map(|links| size_of_val(&links[..])).sum()
    }
}

/// The `count` nearest keys of each query, `[group][prompt]`, the nearest first.
fn nearest(prompt: &PromptQueries<'_>, count: usize) -> Vec<Vec<Vec<u32>>> {
    let mut scores = vec![0.0; prompt.keys.len()];
    let mut of_query = |query: &[f32]| {
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
            member.outer_iter().map(|query| of_query(query.as_slice().expect("a row"))).collect()
        })
        .collect()
}

/// A best-first search.
struct Search<'a> {
    row: &'a Row<'a>,
    picks: &'a Picks,
    beam: usize,
    met: Vec<bool>,
    /// Tokens to go on from.
    ahead: BinaryHeap<Reverse<GraphCandidate>>,
    /// The best that are not picked, `beam` of them at most.
    best: BTreeSet<GraphCandidate>,
}

impl<'a> Search<'a> {
    fn new(row: &'a Row<'a>, beam: usize, picks: &'a Picks) -> Self {
        let met = vec![false; row.visible()];
        Self { row, picks, beam, met, ahead: BinaryHeap::new(), best: BTreeSet::new() }
    }

    /// The best token to go on from; `None` if it is worse than all that are found.
    fn next(&mut self) -> Option<u32> {
        let Reverse(next) = self.ahead.pop()?;
        (!self.beats(next)).then_some(next.token)
    }

    /// Whether as many as can be kept are better.
    fn beats(&self, one: GraphCandidate) -> bool {
        self.best.len() >= self.beam && self.best.last().is_none_or(|&worst| one > worst)
    }

    /// Looks at those of some tokens that are visible and were not met: they are gone on from if they are good enough, or
    /// `always`.
    fn meet(&mut self, tokens: impl Iterator<Item = u32>, always: bool) {
        let new: Vec<usize> = tokens
            .map(|token| token as usize)
            .filter(|&token| {
                self.met.get_mut(token).is_some_and(|met| !std::mem::replace(met, true))
            })
            .collect();
        for (&token, score) in new.iter().zip(self.row.logits_of(&new)) {
            let found = GraphCandidate { score, token: token as u32 };
            if always || !self.beats(found) {
                self.ahead.push(Reverse(found));
                self.keep(found);
            }
        }
    }

    /// Keeps a token among the best, unless it is picked already.
    fn keep(&mut self, found: GraphCandidate) {
        if self.picks.contains(found.token as usize) {
            return;
        }
        self.best.insert(found);
        if self.best.len() > self.beam {
            self.best.pop_last();
        }
    }
}
