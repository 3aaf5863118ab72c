//! How many of the best codes to take: `size = "auto"`.

use vattention_core::{
    Picks, Row,
    sample::Order,
    step::{Sampling, Score},
};

use crate::auto::{Left, Seen};
use crate::top_p::Falling;

/// Tokens read beside the best ones, to know of the rest.
const PILOT: usize = 32;

/// The least number of tokens read before they are judged.
const CHUNK: usize = 64;

/// Takes the best tokens by `scores` `[visible]`, chunk by chunk, as long as a chunk saves the
/// sample more tokens than it has.
///
/// A score is no weight, so the keys and values of the chunks are read, and those of a few tokens
/// drawn from all that nobody took, which stand for the rest. Everything read is taken: what the
/// last chunk did not save, and the few, are the price of not knowing.
/// O(tokens taken · (head_dim + value_dim)) for each head that counts, and a sort of twice as many.
pub(super) fn take(
    row: &Row<'_>,
    score: Score,
    scores: &[u16],
    picks: &mut Picks,
    sampling: &Sampling,
) {
    let rows: Vec<Row<'_>> = match score {
        Score::Head => vec![*row],
        Score::Group => row.members().collect(),
    };
    let mut pilot = Vec::new();
    Order::new(row.visible(), &rows[0].stream()).draws().fill(picks, PILOT, &mut pilot);
    let mut heads: Vec<Head<'_>> = rows.iter().map(Head::new).collect();
    let picked: Vec<usize> = picks.iter().collect();
    let pilot: Vec<usize> = pilot.into_iter().map(|token| token as usize).collect();
    for head in &mut heads {
        head.read(&picked);
        head.pilot = head.read(&pilot);
    }
    picks.take_all(pilot.iter().copied());
    let mut ranking = Falling::new(picks.residual().map(|token| (token, scores[token].into())));
    let base = sampling.base.of(row.visible()) as f64;
    let (mut taken, mut left) = (0, row.visible() - picks.len());
    while left > 0 {
        let chunk: Vec<usize> =
            ranking.by_ref().take(CHUNK.max(taken / 4)).map(|(token, _)| token).collect();
        (taken, left) = (taken + chunk.len(), left - chunk.len());
        let worst = scores[chunk[chunk.len() - 1]];
        let beyond: Vec<bool> = pilot.iter().map(|&token| scores[token] < worst).collect();
        let (mut with, mut without) = (base, base);
        for head in &mut heads {
            let read = head.read(&chunk);
            let rest = head.rest(&beyond, &read, left);
            let price = head.seen.price(&sampling.promise, &rest);
            with = price.sample(&rest).max(with);
            without = price.sample(&rest.and(&Left::of(&read))).max(without);
        }
        if without - with <= chunk.len() as f64 {
            break;
        }
    }
    picks.take_top(taken, scores);
}

/// One query head, and what it has read.
struct Head<'a> {
    row: Row<'a>,
    /// The logit of weight 1: the largest of the tokens read first.
    shift: f64,
    seen: Seen,
    /// Weights of the pilot's tokens.
    pilot: Vec<f64>,
}

/// No token counts for more than this times the largest of those read first, lest squares overflow.
const MOST: f64 = 1e100;

impl<'a> Head<'a> {
    fn new(row: &Row<'a>) -> Self {
        let seen = Seen::new(row.values().dim());
        Self { row: *row, shift: f64::NEG_INFINITY, seen, pilot: Vec::new() }
    }

    /// Reads tokens, and returns their weights.
    fn read(&mut self, tokens: &[usize]) -> Vec<f64> {
        let logits: Vec<f64> = self.row.logits_of(tokens).into_iter().map(f64::from).collect();
        if self.shift == f64::NEG_INFINITY {
            self.shift = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        }
        let weights: Vec<f64> =
            logits.into_iter().map(|logit| (logit - self.shift).exp().min(MOST)).collect();
        let mut value = vec![0.0; self.row.values().dim()];
        for (&token, &weight) in tokens.iter().zip(&weights) {
            self.row.values().copy_row(token, &mut value);
            self.seen.add(weight, &value);
        }
        weights
    }

    /// The `left` tokens that were not read, as the pilot's tokens `beyond` the last chunk show
    /// them, or that chunk if there are none.
    fn rest(&self, beyond: &[bool], chunk: &[f64], left: usize) -> Left {
        let alike: Vec<f64> =
            self.pilot.iter().zip(beyond).filter(|&(_, beyond)| *beyond).map(|(&e, _)| e).collect();
        Left::of(if alike.is_empty() { chunk } else { &alike }).scaled_to(left)
    }
}
