//! Strata of the tokens that nobody took, and what has been drawn of each.

use vattention_core::{Picks, sample::Order, step::Stream};

/// Levels of the score.
const LEVELS: usize = 8;

/// Blocks of positions in each level.
const BLOCKS: usize = 4;

/// Draws from each stratum at the least: two make a variance.
const LEAST: usize = 2;

/// Sets of tokens that are sampled one by one.
pub(super) struct Strata {
    each: Vec<Stratum>,
    /// The stratum of each visible token, or none that there is.
    of: Vec<u8>,
    /// The visible tokens in random order, from where it has not been walked yet.
    order: Box<dyn Iterator<Item = usize>>,
}

/// One stratum: the first of its tokens in a random order of all are its sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Stratum {
    /// Its tokens, `N_h`.
    pub(super) size: usize,
    /// The part of the draws that are made from it.
    share: f64,
    /// Those met in the random order so far.
    pub(super) met: Vec<u32>,
    /// How many of these are drawn, `n_h`.
    pub(super) drawn: usize,
}

impl Strata {
    /// Cuts what is not picked by the scores that were kept, then by position.
    pub(super) fn new(picks: &Picks, stream: &Stream) -> Self {
        let mut of = vec![u8::MAX; picks.visible()];
        let (mut strata, mut spreads) = (Vec::with_capacity(LEVELS * BLOCKS), Vec::new());
        for level in levels(picks) {
            for block in 0..BLOCKS {
                let tokens = &level[part(level.len(), BLOCKS, block)];
                for &token in tokens {
                    of[token as usize] = strata.len() as u8;
                }
                strata.push(Stratum { size: tokens.len(), ..Stratum::default() });
                spreads.push(picks.scores().map_or(1.0, |scores| foreseen(tokens, scores)));
            }
        }
        share_out(&mut strata, &spreads);
        let order = Box::new(Order::new(picks.visible(), stream).tokens());
        Self { each: strata, of, order }
    }

    /// How many are drawn of each stratum at a size, `[strata]`: as many together, but two of each at
    /// the least, and no more than there are.
    pub(super) fn allocate(&self, size: usize) -> Vec<usize> {
        let all: usize = self.each.iter().map(|stratum| stratum.size).sum();
        if size >= all {
            return self.each.iter().map(|stratum| stratum.size).collect();
        }
        // Where strata are used up, more must be shared out than are drawn.
        let (mut low, mut high) = (size, size + 1);
        while self.share_out(high).iter().sum::<usize>() < size {
            (low, high) = (high, 2 * high);
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.share_out(middle).iter().sum::<usize>() < size {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.share_out(high)
    }

    fn share_out(&self, draws: usize) -> Vec<usize> {
        let others = draws.saturating_sub(LEAST * self.each.len()) as f64;
        let of = |stratum: &Stratum| {
            (LEAST + (others * stratum.share).round() as usize).min(stratum.size)
        };
        self.each.iter().map(of).collect()
    }

    /// Draws on until each stratum has its `draws`, `[strata]`: the stratum of each new token.
    pub(super) fn draw(&mut self, draws: &[usize]) -> Vec<(usize, u32)> {
        let lacking =
            |(stratum, &draws): (&Stratum, &usize)| draws.saturating_sub(stratum.met.len());
        let mut lacking: usize = self.each.iter().zip(draws).map(lacking).sum();
        while lacking > 0
            && let Some(token) = self.order.next()
        {
            let place = usize::from(self.of[token]);
            if let Some(stratum) = self.each.get_mut(place) {
                lacking -= usize::from(stratum.met.len() < draws[place]);
                stratum.met.push(token as u32);
            }
        }
        let mut new = Vec::new();
        for (place, (stratum, &draws)) in self.each.iter_mut().zip(draws).enumerate() {
            let more = stratum.drawn..draws.max(stratum.drawn);
            new.extend(stratum.met[more.clone()].iter().map(|&token| (place, token)));
            stratum.drawn = more.end;
        }
        new
    }

    /// `N_h` and `n_h` of each stratum.
    pub(super) fn counts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.each.iter().map(|stratum| (stratum.size, stratum.drawn))
    }

    /// The strata beside each in level or in block, of those that have tokens, `[strata]`.
    pub(super) fn neighbours(&self) -> Vec<Vec<usize>> {
        let has_tokens = |&place: &usize| self.each[place].size > 0;
        let beside = |place| beside(place).into_iter().filter(has_tokens).collect();
        (0..self.each.len()).map(beside).collect()
    }

    /// Each stratum.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Stratum> {
        self.each.iter()
    }
}

/// The strata one block earlier and later in the same level, and one level up and down.
fn beside(place: usize) -> Vec<usize> {
    let (level, block) = (place / BLOCKS, place % BLOCKS);
    let mut beside = Vec::with_capacity(4);
    if block > 0 {
        beside.push(place - 1);
    }
    if block + 1 < BLOCKS {
        beside.push(place + 1);
    }
    if level > 0 {
        beside.push(place - BLOCKS);
    }
    if level + 1 < LEVELS {
        beside.push(place + BLOCKS);
    }
    beside
}

/// The logarithm of the root mean square weight of tokens, if scores are logits.
fn foreseen(tokens: &[u32], scores: &[f32]) -> f64 {
    let scores = || tokens.iter().map(|&token| f64::from(scores[token as usize]));
    let most = scores().fold(f64::NEG_INFINITY, f64::max);
    let mean =
        scores().map(|score| (2.0 * (score - most)).exp()).sum::<f64>() / tokens.len() as f64;
    most + 0.5 * mean.ln()
}

/// Gives each stratum its share of the draws: half of all in proportion to `N_h`, half to `N_h S_h`,
/// of which `spreads` are the logarithms of what is foreseen of `S_h`.
fn share_out(strata: &mut [Stratum], spreads: &[f64]) {
    let most = spreads.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sizes: Vec<f64> = strata.iter().map(|stratum| stratum.size as f64).collect();
    let of =
        |(size, spread): (&f64, &f64)| if *size > 0.0 { size * (spread - most).exp() } else { 0.0 };
    let neyman: Vec<f64> = sizes.iter().zip(spreads).map(of).collect();
    let [all, all_neyman] = [&sizes, &neyman].map(|of| of.iter().sum::<f64>());
    for (stratum, (size, neyman)) in strata.iter_mut().zip(sizes.iter().zip(&neyman)) {
        stratum.share = 0.5 * (size / all + neyman / all_neyman);
    }
}

/// The tokens not picked, in levels of equal size by falling score, each ascending. Of equal scores
/// the lower tokens come first; so do all if no scores were kept.
fn levels(picks: &Picks) -> Vec<Vec<u32>> {
    let alike;
    let scores = if let Some(scores) = picks.scores() {
        scores
    } else {
        alike = vec![0.0; picks.visible()];
        &alike
    };
    let mut taken = Picks::new(picks.visible());
    taken.union(picks);
    let left = picks.visible() - picks.len();
    let mut level = |i: usize| {
        let before = taken.words().to_vec();
        taken.take_top(part(left, LEVELS, i).len(), scores);
        let new = before.iter().zip(taken.words()).map(|(before, now)| now & !before);
        new.enumerate().flat_map(|(word, bits)| places(word, bits)).collect()
    };
    (0..LEVELS).map(&mut level).collect()
}

/// The tokens whose bits are set in a word.
fn places(word: usize, bits: u64) -> impl Iterator<Item = u32> {
    let without_lowest = |&bits: &u64| Some(bits & bits.wrapping_sub(1));
    std::iter::successors(Some(bits), without_lowest)
        .take_while(|&bits| bits != 0)
        .map(move |bits| 64 * word as u32 + bits.trailing_zeros())
}

/// The `i`-th of `parts` equal parts of `len`.
fn part(len: usize, parts: usize, i: usize) -> std::ops::Range<usize> {
    i * len / parts..(i + 1) * len / parts
}
