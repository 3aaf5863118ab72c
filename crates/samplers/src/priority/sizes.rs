//! With which probability each token is drawn, at any threshold.

use vattention_core::Picks;

use super::index::Scan;

/// No token's size is less than this share of all, so that none is impossible to draw.
const LEAST: f64 = 1.0 / (1_u64 << 40) as f64;

/// The sizes of the tokens that are not picked.
///
/// At a threshold `t` a token is drawn with probability `min(1, t size)`.
#[derive(Debug)]
pub(super) struct Sizes {
    /// The tokens, ascending, `[left]`.
    tokens: Vec<u32>,
    /// Of each, `[left]`; those that are finite sum to 1, or hardly more.
    shares: Vec<f64>,
    largest: Largest,
    /// What each reader's own sizes sum to.
    readers: Vec<Total>,
}

/// What one reader's own sizes sum to.
#[derive(Clone, Copy, Debug)]
struct Total {
    /// The logarithm of the sum, times what makes up for the sizes being those of a group.
    log: f64,
    /// `m`.
    length: f64,
}

impl Sizes {
    /// `e^score √(|v|² + m²)` of each reader, together; those of the pilot, which are not picked, are certain
    /// at any threshold. O(visible · readers).
    pub(super) fn new(scans: &[Scan<'_>], picks: &Picks, pilot: &[usize]) -> Self {
        let tokens: Vec<u32> = picks.residual().map(|token| token as u32).collect();
        let of_each: Vec<(Vec<f64>, Total)> =
            scans.iter().map(|scan| of_reader(scan, &tokens)).collect();
        let (own, readers): (Vec<_>, Vec<_>) = of_each.into_iter().unzip();
        let mut own = own.into_iter();
        let mut sizes = own.next().expect("a list has a reader");
        if own.len() > 0 {
            sizes = sizes.into_iter().map(|size| size * size).collect();
            own.for_each(|own| sizes.iter_mut().zip(own).for_each(|(size, x)| *size += x * x));
            sizes = sizes.into_iter().map(f64::sqrt).collect();
        }
        for token in pilot {
            let place = tokens.binary_search(&(*token as u32)).expect("it is not picked");
            sizes[place] = f64::INFINITY;
        }
        Self::of(tokens, sizes, readers)
    }

    /// Of sizes that need not sum to 1, none of them less than any reader's share.
    fn of(tokens: Vec<u32>, mut sizes: Vec<f64>, mut readers: Vec<Total>) -> Self {
        let total: f64 = sizes.iter().filter(|size| size.is_finite()).sum();
        for size in &mut sizes {
            *size = (*size / total).max(LEAST);
        }
        for reader in &mut readers {
            reader.log += total.ln();
        }
        let largest = Largest::new(&sizes);
        Self { tokens, shares: sizes, largest, readers }
    }

    /// Of tokens with given sizes, for one reader.
    #[cfg(test)]
    pub(super) fn given(tokens: Vec<u32>, sizes: Vec<f64>) -> Self {
        Self::of(tokens, sizes, vec![Total { log: 0.0, length: 1.0 }])
    }

    /// What `Σ e^score √(|v|² + m²)` over tokens is at most a multiple of, relative to a logit, by
    /// the sum of their sizes; and `m`.
    pub(super) fn total(&self, reader: usize, shift: f64) -> (f64, f64) {
        let Total { log, length } = self.readers[reader];
        ((log - shift).exp(), length)
    }

    /// Tokens that are not picked.
    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn token(&self, place: usize) -> usize {
        self.tokens[place] as usize
    }

    /// The probability with which the token at a place is drawn.
    /// It is one that f32 holds, as lists do.
    pub(super) fn probability(&self, place: usize, t: f64) -> f64 {
        if t == 0.0 {
            return 0.0;
        }
        f64::from((t * self.shares[place]).min(1.0) as f32)
    }

    /// The threshold at which so many are drawn on average; all, if there are no more.
    ///
    /// Those that are certain at a threshold are taken out, and it is raised for the others, until
    /// no more are: a handful of rounds.
    pub(super) fn threshold(&self, expected: usize) -> f64 {
        if expected >= self.len() {
            return f64::INFINITY;
        }
        let mut t = expected as f64;
        loop {
            let (certain, rest) = self.largest.split(&self.shares, t);
            let next = (expected as f64 - certain as f64) / rest;
            if next.partial_cmp(&t) != Some(std::cmp::Ordering::Greater) {
                return t;
            }
            t = next;
        }
    }
}

/// Sizes of more than one in so many are kept in order; there are fewer of them, as all sum to 1.
const LARGE: f64 = 4096.0;

/// The largest sizes, so that those that are certain need not be looked for among all.
#[derive(Debug)]
struct Largest {
    /// Falling.
    sizes: Vec<f64>,
    /// `rest[i]` is the sum of all sizes but the first `i` of these.
    rest: Vec<f64>,
}

impl Largest {
    fn new(all: &[f64]) -> Self {
        let is_large = |size: f64| size * LARGE >= 1.0;
        let mut sizes: Vec<f64> = all.iter().copied().filter(|&size| is_large(size)).collect();
        sizes.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut rest = vec![all.iter().filter(|&&size| !is_large(size)).sum::<f64>()];
        for size in sizes.iter().rev() {
            rest.push(rest[rest.len() - 1] + size);
        }
        rest.reverse();
        Self { sizes, rest }
    }

    /// How many of `all` are certain at a threshold, which the larger sizes are, and what the others sum to.
    fn split(&self, all: &[f64], t: f64) -> (usize, f64) {
        if t <= LARGE {
            let certain = self.sizes.partition_point(|size| t * size >= 1.0);
            return (certain, self.rest[certain]);
        }
        let others = || all.iter().filter(|&&size| t * size < 1.0);
        (all.len() - others().count(), others().sum())
    }
}

/// One reader's sizes, which sum to 1, and what they summed to before.
fn of_reader(scan: &Scan<'_>, tokens: &[u32]) -> (Vec<f64>, Total) {
    let most = f64::from(scan.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weights: Vec<f64> =
        scan.scores.iter().map(|&score| libm::exp(f64::from(score) - most)).collect();
    let square = mean_square(&weights, scan.norms);
    let mut sizes = weights;
    for (place, &token) in tokens.iter().enumerate() {
        let norm = f64::from(scan.norms[token as usize]);
        // No token's place is behind its number.
        sizes[place] = sizes[token as usize] * (norm * norm + square).sqrt();
    }
    sizes.truncate(tokens.len());
    let total: f64 = sizes.iter().sum();
    // Beside what is taken, all that is left may weigh too little for a number.
    let alike = 1.0 / sizes.len() as f64;
    for size in &mut sizes {
        *size = if total > 0.0 { *size / total } else { alike };
    }
    (sizes, Total { log: total.ln() + most, length: square.sqrt() })
}

/// `m²`.
fn mean_square(weights: &[f64], norms: &[f32]) -> f64 {
    let squares: f64 =
        weights.iter().zip(norms).map(|(e, &norm)| e * f64::from(norm).powi(2)).sum();
    squares / weights.iter().sum::<f64>()
}
