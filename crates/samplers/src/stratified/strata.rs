//! Strata of the residual, and the tokens drawn from each.

use vattention_core::{
    Picks,
    sample::Order,
    step::{Stream, exponentials},
};

use super::levels::{LEVELS, Levels, part};

/// Number of blocks of positions in each level.
const BLOCKS: usize = 4;

/// Least number of draws from each stratum: a variance needs two.
const LEAST: usize = 2;

/// Disjoint sets of tokens, from each of which a sample is drawn.
pub(super) struct DisjointStrata {
    strata: Vec<Stratum>,
    /// Stratum of each visible token; `u8::MAX` for picked tokens.
    stratum_of: Vec<u8>,
    /// The rest of the random order of the visible tokens.
    order: Box<dyn Iterator<Item = usize>>,
}

/// One stratum, whose sample consists of its first tokens in a random order of all visible tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Stratum {
    /// Number of tokens, `N_h`.
    pub(super) size: usize,
    /// Share of the draws that is allocated to the stratum.
    share: f64,
    /// Tokens of the stratum in the part of the random order that was read so far.
    pub(super) visited: Vec<u32>,
    /// Number of visited tokens that are drawn, `n_h`.
    pub(super) drawn: usize,
}

impl DisjointStrata {
    /// Divides the tokens that are not picked by their stored scores and by position.
    pub(super) fn new(picks: &Picks, stream: &Stream) -> Self {
        let equal;
        let scores = if let Some(scores) = picks.scores() {
            scores
        } else {
            equal = vec![0.0; picks.visible()];
            &equal
        };
        let mut levels = Levels::new(picks, scores);
        let mut blocks = Blocks::new(picks.visible() - picks.len());
        let above = levels.count_above(scores);
        // Squared weights, if scores are logits.
        let squares = exponentials(scores, levels.most.into(), 2.0);
        let stratum = |size| Stratum { size, ..Stratum::default() };
        let mut strata: Vec<Stratum> = blocks.sizes_of_strata().map(stratum).collect();
        let mut sums = [0.0; LEVELS * BLOCKS];
        let mut stratum_of = vec![u8::MAX; picks.visible()];
        for (word, &picked) in picks.words().iter().enumerate() {
            let first = 64 * word;
            for token in first..picks.visible().min(first + 64) {
                if picked >> (token - first) & 1 == 0 {
                    let stratum = blocks.place(levels.place(scores[token], above[token]));
                    stratum_of[token] = stratum as u8;
                    sums[stratum] += squares[token];
                }
            }
        }
        set_shares(&mut strata, &sums);
        let order = Box::new(Order::new(picks.visible(), stream).tokens());
        Self { strata, stratum_of, order }
    }

    /// Number of draws from each stratum for a sample of `size` tokens, `[strata]`. At least
    /// [`LEAST`] tokens of each stratum are drawn, or all if it has fewer, so the sum may exceed
    /// `size`.
    pub(super) fn allocate(&self, size: usize) -> Vec<usize> {
        let all: usize = self.strata.iter().map(|stratum| stratum.size).sum();
        if size >= all {
            return self.strata.iter().map(|stratum| stratum.size).collect();
        }
        // Strata with fewer tokens than allocated draws return the excess, so more than `size`
        // draws must be divided.
        let (mut low, mut high) = (size, size + 1);
        while self.divide(high).iter().sum::<usize>() < size {
            (low, high) = (high, 2 * high);
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.divide(middle).iter().sum::<usize>() < size {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.divide(high)
    }

    /// Divides draws among the strata by their shares; no stratum has more draws than tokens.
    fn divide(&self, draws: usize) -> Vec<usize> {
        let others = draws.saturating_sub(LEAST * self.strata.len()) as f64;
        let draws_from = |stratum: &Stratum| {
            (LEAST + (others * stratum.share).round() as usize).min(stratum.size)
        };
        self.strata.iter().map(draws_from).collect()
    }

    /// Draws until each stratum has its number of `draws`, `[strata]`. Returns the new tokens, each
    /// with its stratum.
    pub(super) fn draw(&mut self, draws: &[usize]) -> Vec<(usize, u32)> {
        let lacking =
            |(stratum, &draws): (&Stratum, &usize)| draws.saturating_sub(stratum.visited.len());
        let mut lacking: usize = self.strata.iter().zip(draws).map(lacking).sum();
        while lacking > 0
            && let Some(token) = self.order.next()
        {
            let place = usize::from(self.stratum_of[token]);
            if let Some(stratum) = self.strata.get_mut(place) {
                lacking -= usize::from(stratum.visited.len() < draws[place]);
                stratum.visited.push(token as u32);
            }
        }
        let mut new = Vec::new();
        for (place, (stratum, &draws)) in self.strata.iter_mut().zip(draws).enumerate() {
            let more = stratum.drawn..draws.max(stratum.drawn);
            new.extend(stratum.visited[more.clone()].iter().map(|&token| (place, token)));
            stratum.drawn = more.end;
        }
        new
    }

    /// `N_h` and `n_h` of each stratum.
    pub(super) fn counts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.strata.iter().map(|stratum| (stratum.size, stratum.drawn))
    }

    /// Neighbours of each stratum that have tokens, `[strata]`.
    pub(super) fn neighbours(&self) -> Vec<Vec<usize>> {
        let has_tokens = |&place: &usize| self.strata[place].size > 0;
        let neighbours = |place| adjacent(place).into_iter().filter(has_tokens).collect();
        (0..self.strata.len()).map(neighbours).collect()
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Stratum> {
        self.strata.iter()
    }
}

/// Strata one block earlier and later in the same level, and in the same block one level up and
/// down.
fn adjacent(place: usize) -> Vec<usize> {
    let (level, block) = (place / BLOCKS, place % BLOCKS);
    let mut adjacent = Vec::with_capacity(4);
    if block > 0 {
        adjacent.push(place - 1);
    }
    if block + 1 < BLOCKS {
        adjacent.push(place + 1);
    }
    if level > 0 {
        adjacent.push(place - BLOCKS);
    }
    if level + 1 < LEVELS {
        adjacent.push(place + BLOCKS);
    }
    adjacent
}

/// Sets the share of the draws of each stratum: half in proportion to `N_h`, half to `N_h E_h`.
///
/// `squares` are the sums of the squared weights of the strata's tokens: `E_h` is the root of their
/// mean.
fn set_shares(strata: &mut [Stratum], squares: &[f64]) {
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
    /// Block of the next token of each level.
    next: [usize; LEVELS],
    /// Number of tokens that are still to be placed in this block.
    lacking: [usize; LEVELS],
}

impl Blocks {
    /// Blocks of the levels into which `left` tokens are divided.
    fn new(left: usize) -> Self {
        let sizes: [usize; LEVELS] = std::array::from_fn(|level| part(left, LEVELS, level).len());
        let lacking = sizes.map(|size| part(size, BLOCKS, 0).len());
        Self { sizes, next: [0; LEVELS], lacking }
    }

    /// Number of tokens of each stratum.
    fn sizes_of_strata(&self) -> impl Iterator<Item = usize> {
        self.sizes
            .iter()
            .flat_map(|&size| (0..BLOCKS).map(move |block| part(size, BLOCKS, block).len()))
    }

    /// Returns the stratum of the next token of a level.
    fn place(&mut self, level: usize) -> usize {
        while self.lacking[level] == 0 {
            self.next[level] += 1;
            self.lacking[level] = part(self.sizes[level], BLOCKS, self.next[level]).len();
        }
        self.lacking[level] -= 1;
        level * BLOCKS + self.next[level]
    }
}
