//! Strata of the tokens that nobody took, and what has been drawn of each.

use vattention_core::{
    Picks,
    sample::Order,
    step::{Stream, exponentials},
};

use super::levels::{LEVELS, Levels, part};

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
    /// Strata of the tokens that are not picked, by the scores that were stored and by position.
    pub(super) fn new(picks: &Picks, stream: &Stream) -> Self {
        let alike;
        let scores = if let Some(scores) = picks.scores() {
            scores
        } else {
            alike = vec![0.0; picks.visible()];
            &alike
        };
        let mut levels = Levels::new(picks, scores);
        let mut blocks = Blocks::new(picks.visible() - picks.len());
        let above = levels.above(scores);
        // Squared weights, if scores are logits.
        let squares = exponentials(scores, levels.most.into(), 2.0);
        let stratum = |size| Stratum { size, ..Stratum::default() };
        let mut strata: Vec<Stratum> = blocks.strata().map(stratum).collect();
        let mut sums = [0.0; LEVELS * BLOCKS];
        let mut of = vec![u8::MAX; picks.visible()];
        for (word, &picked) in picks.words().iter().enumerate() {
            let first = 64 * word;
            for token in first..picks.visible().min(first + 64) {
                if picked >> (token - first) & 1 == 0 {
                    let stratum = blocks.place(levels.place(scores[token], above[token]));
                    of[token] = stratum as u8;
                    sums[stratum] += squares[token];
                }
            }
        }
        share_out(&mut strata, &sums);
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

/// Gives each stratum its share of the draws: half of all in proportion to `N_h`, half to `N_h E_h`.
/// `squares` are the sums of the squared weights of the strata's tokens, so that `E_h` is the root of
/// their mean.
fn share_out(strata: &mut [Stratum], squares: &[f64]) {
    let size = |stratum: &Stratum| stratum.size as f64;
    let neyman: Vec<f64> =
        strata.iter().zip(squares).map(|(stratum, sum)| (size(stratum) * sum).sqrt()).collect();
    let [all, all_neyman] = [strata.iter().map(size).sum::<f64>(), neyman.iter().sum()];
    for (stratum, neyman) in strata.iter_mut().zip(neyman) {
        stratum.share = 0.5 * (size(stratum) / all + neyman / all_neyman);
    }
}

/// Blocks of positions in each level, filled with its tokens in order.
struct Blocks {
    /// Number of tokens of each level.
    sizes: [usize; LEVELS],
    /// Block in which the next token of each level lies.
    next: [usize; LEVELS],
    /// Number of tokens that this block still lacks.
    lacking: [usize; LEVELS],
}

impl Blocks {
    /// Blocks of levels that divide `left` tokens.
    fn new(left: usize) -> Self {
        let sizes: [usize; LEVELS] = std::array::from_fn(|level| part(left, LEVELS, level).len());
        let lacking = sizes.map(|size| part(size, BLOCKS, 0).len());
        Self { sizes, next: [0; LEVELS], lacking }
    }

    /// Number of tokens of each stratum.
    fn strata(&self) -> impl Iterator<Item = usize> {
        self.sizes
            .iter()
            .flat_map(|&size| (0..BLOCKS).map(move |block| part(size, BLOCKS, block).len()))
    }

    /// The stratum of the next token of a level.
    fn place(&mut self, level: usize) -> usize {
        while self.lacking[level] == 0 {
            self.next[level] += 1;
            self.lacking[level] = part(self.sizes[level], BLOCKS, self.next[level]).len();
        }
        self.lacking[level] -= 1;
        level * BLOCKS + self.next[level]
    }
}
