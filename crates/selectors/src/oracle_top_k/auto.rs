//! How many of the best tokens to take: `size = "auto"`.

use vattention_core::{
    Picks, Row,
    step::{Sampling, Score},
};

use crate::auto::{Left, Price, Seen};
use crate::top_p::{Falling, attention};

/// Tokens read before anything is decided, and the least by which it goes on.
const STEP: usize = 16;

/// The `k` that makes `k + max(base, b(k))` the least, `b(k)` being the sample that the most
/// demanding of the heads that count needs after the `k` best tokens by `scores` `[visible]`, and
/// at least so large that the next best token, drawn, does not exceed ε alone.
///
/// Prices follow from the values of the tokens that are taken: it goes down the ranking, at most a
/// quarter as far again at a time, until the best `k` is not beyond what it has read. All that was read is
/// taken. O(visible) for each head that counts, and a sort of about the tokens read in all.
pub(super) fn count(
    row: &Row<'_>,
    score: Score,
    scores: &[f32],
    picks: &Picks,
    sampling: &Sampling,
) -> usize {
    let mut search = Search {
        falling: Falling::new(picks.residual().map(|token| (token, scores[token].into()))),
        ranked: Vec::new(),
        base: sampling.base.of(row.visible()) as f64,
        heads: match score {
            Score::Head => vec![Head::new(row, picks)],
            Score::Group => row.members().map(|member| Head::new(&member, picks)).collect(),
        },
    };
    let left = row.visible() - picks.len();
    let (mut k, mut read) = (STEP.saturating_sub(picks.len()).min(left), 0);
    loop {
        search.rank(k);
        for head in &mut search.heads {
            search.ranked[read..k].iter().for_each(|&token| head.take(token));
        }
        let price = |head: &Head<'_>| head.seen.price(&sampling.promise, &head.left);
        let prices: Vec<Price> = search.heads.iter().map(price).collect();
        let best = search.cheapest(k, &prices);
        if best <= k {
            return k;
        }
        (read, k) = (k, best.min(k + STEP.max(k / 4)));
    }
}

/// One query head's attention, and what is known of its values.
struct Head<'a> {
    row: Row<'a>,
    /// Of each visible token, 1 in all.
    attention: Vec<f64>,
    /// What no selector took.
    left: Left,
    /// The tokens taken.
    seen: Seen,
    value: Vec<f32>,
}

impl<'a> Head<'a> {
    fn new(row: &Row<'a>, picks: &Picks) -> Self {
        let attention = attention(row, Score::Head, |row| row.scores(Score::Head));
        let (left, dim) = (Left::of(&attention), row.values().dim());
        let (seen, value) = (Seen::new(dim), vec![0.0; dim]);
        let mut head = Self { row: *row, attention, left, seen, value };
        picks.indices().into_iter().for_each(|token| head.take(token as usize));
        head
    }

    /// Reads a token for certain.
    fn take(&mut self, token: usize) {
        self.row.values().copy_row(token, &mut self.value);
        self.seen.add(self.attention[token], &self.value);
        self.left.take(self.attention[token]);
    }
}

/// The tokens by falling score, and the heads that must agree on how many to take.
struct Search<'a> {
    falling: Falling,
    /// The best so far.
    ranked: Vec<usize>,
    base: f64,
    heads: Vec<Head<'a>>,
}

impl Search<'_> {
    /// Ranks at least the best `k` tokens; all, if there are fewer.
    fn rank(&mut self, k: usize) {
        let more = k.saturating_sub(self.ranked.len());
        self.ranked.extend(self.falling.by_ref().take(more).map(|(token, _)| token));
    }

    /// The number of certain tokens, at least `from`, which are taken, that makes all that is read
    /// the least.
    fn cheapest(&mut self, from: usize, prices: &[Price]) -> usize {
        let mut left: Vec<Left> = self.heads.iter().map(|head| head.left).collect();
        let (mut best, mut least) = (from, f64::INFINITY);
        for k in from.. {
            self.rank(k + 1);
            let Some(&token) = self.ranked.get(k) else {
                return if least < k as f64 { best } else { k };
            };
            let sample = |((head, left), price): ((&Head<'_>, &Left), &Price)| {
                price.sample(left).max(price.alone(left, head.attention[token]))
            };
            let samples = self.heads.iter().zip(&left).zip(prices).map(sample);
            let sampled = samples.fold(self.base, f64::max).min(left[0].tokens as f64);
            if k as f64 + sampled < least {
                (best, least) = (k, k as f64 + sampled);
            }
            if k as f64 + self.base >= least {
                return best;
            }
            for (left, head) in left.iter_mut().zip(&self.heads) {
                left.take(head.attention[token]);
            }
        }
        unreachable!("there is an end to the tokens")
    }
}
