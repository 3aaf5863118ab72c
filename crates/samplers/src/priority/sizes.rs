//! With which probability each token is drawn, at any threshold.
//!
//! In f32, by operations that vectors have and that every machine does alike: so all draw the same.

use half::bf16;
use multiversion::multiversion;
use vattention_core::{Picks, step::Element};

use super::errors::Scan;
use super::exp::exp;
use super::scratch::Scratch;

/// No token's size is less than this share of all, so that none is impossible to draw.
const LEAST: f32 = 1.0 / (1_u64 << 40) as f32;

/// Probabilities are multiples of `1 / RESOLUTION`, as the uniform numbers are.
pub(super) const RESOLUTION: f32 = (1_u64 << 32) as f32;

/// Bound of the relative rounding error of sizes in f32.
const ROUNDING: f64 = 3e-5;

/// The sizes of the tokens that are not picked.
///
/// At a threshold `t` a token is drawn with probability `min(1, t size)`.
#[derive(Debug)]
pub(super) struct Sizes {
    /// `[visible]`: 0 of those that are not left to chance, the others sum to 1, or hardly more.
    shares: Scratch,
    /// Tokens that are not picked, but certain at any threshold, ascending.
    certain: Vec<usize>,
    /// Tokens that are not picked.
    left: usize,
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
    /// The sizes of all readers, together. Tokens of `certain`, which are not picked, are certain at any
    /// threshold. O(visible · readers).
    pub(super) fn new(scans: &[Scan<'_>], picks: &Picks, certain: Vec<usize>) -> Self {
        let left = picks.visible() - picks.len();
        let taken = || picks.iter().chain(certain.iter().copied());
        let unit = unit(scans[0].norms);
        let (own, mut readers): (Vec<_>, Vec<_>) =
            scans.iter().map(|scan| sizes_of_reader(scan, unit, taken())).unzip();
        let (mut shares, total) = root_of_squares(own);
        scale(&mut shares, 1.0 / total as f32);
        taken().for_each(|token| shares[token] = 0.0);
        for reader in &mut readers {
            reader.log += total.ln();
        }
        let largest = Largest::new(&shares);
        Self { shares, certain, left, largest, readers }
    }

    /// Of tokens with given sizes, for one reader.
    #[cfg(test)]
    pub(super) fn given(mut sizes: Vec<f32>) -> Self {
        let total: f32 = sizes.iter().sum();
        scale(&mut sizes, 1.0 / total);
        let (left, largest) = (sizes.len(), Largest::new(&sizes));
        let readers = vec![Total { log: 0.0, length: 1.0 }];
        Self { shares: sizes.into(), certain: Vec::new(), left, largest, readers }
    }

    /// The logarithm of what the sizes of tokens sum to at most per unit of their shares, for one
    /// reader, relative to a logit; and `m`.
    pub(super) fn total(&self, reader: usize, shift: f64) -> (f64, f64) {
        let Total { log, length } = self.readers[reader];
        (log - shift + ROUNDING, length)
    }

    /// How many tokens are not picked.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The size of each token, `[visible]`; 0 of those that are not left to chance.
    pub(super) fn shares(&self) -> &[f32] {
        &self.shares
    }

    /// Tokens that are not picked, but certain at any threshold.
    pub(super) fn certain(&self) -> &[usize] {
        &self.certain
    }

    /// Tokens that are left to chance.
    pub(super) fn tokens(&self) -> impl Iterator<Item = usize> {
        (0..self.shares.len()).filter(|&token| self.shares[token] > 0.0)
    }

    /// The probability with which a token that is not picked is drawn.
    pub(super) fn probability(&self, token: usize, t: f64) -> f64 {
        let share = self.shares[token];
        if share == 0.0 {
            return 1.0;
        }
        let p = (t as f32 * share).min(1.0);
        // Larger ones have no finer digits.
        f64::from(if p * 256.0 < 1.0 { rounded_up(p * RESOLUTION) / RESOLUTION } else { p })
    }

    /// The threshold of a sample of a size; infinite if that is everything.
    ///
    /// Tokens that are certain at any threshold count as drawn, but at least half of the sample is left
    /// to chance. Tokens that are certain at a threshold are taken out, and it is raised for the
    /// others, until no more are: a handful of rounds.
    pub(super) fn threshold(&self, size: usize) -> f64 {
        let (size, certain) = (size as f64, self.certain.len() as f64);
        let expected = (size - certain).max(size / 2.0);
        if expected >= self.left as f64 - certain {
            return f64::INFINITY;
        }
        let mut t = expected;
        loop {
            let (certain, rest) = self.largest.split(&self.shares, t);
            let next = (expected - certain as f64) / rest;
            if next.partial_cmp(&t) != Some(std::cmp::Ordering::Greater) {
                return t;
            }
            t = next;
        }
    }
}

/// The least whole number that is not less, of numbers that 32 bits hold.
fn rounded_up(x: f32) -> f32 {
    let whole = x as u32 as f32;
    if whole < x { whole + 1.0 } else { whole }
}

/// Sizes of more than one in so many are kept in order: in a share of the tokens, within bounds. There are fewer of them, as
/// all sum to 1.
const LARGE: (f32, f32) = (2048.0, 8192.0);
const TOKENS_TO_ONE: f32 = 8.0;

/// The largest sizes, so that those that are certain need not be looked for among all.
#[derive(Debug)]
struct Largest {
    /// Falling.
    sizes: Vec<f32>,
    /// `rest[i]` is the sum of all sizes but the first `i` of these.
    rest: Vec<f64>,
    /// The least of sizes that are kept in order.
    least: f32,
}

impl Largest {
    fn new(all: &[f32]) -> Self {
        let mut sizes = Vec::new();
        let least = 1.0 / (all.len() as f32 / TOKENS_TO_ONE).clamp(LARGE.0, LARGE.1);
        add_large(all, least, &mut sizes);
        // They are positive: their bits are in the same order.
        sizes.sort_unstable_by_key(|size| !size.to_bits());
        let mut rest = vec![below(all, least).1];
        for &size in sizes.iter().rev() {
            rest.push(rest[rest.len() - 1] + f64::from(size));
        }
        rest.reverse();
        Self { sizes, rest, least }
    }

    /// How many of `all` are certain at a threshold, which the larger sizes are, and what the others sum to.
    fn split(&self, all: &[f32], t: f64) -> (usize, f64) {
        if t * f64::from(self.least) <= 1.0 {
            let certain = self.sizes.partition_point(|&size| t * f64::from(size) >= 1.0);
            return (certain, self.rest[certain]);
        }
        below(all, (1.0 / t) as f32)
    }
}

/// One reader's sizes of the tokens that are not taken, which sum to 1 before errors raise them.
fn sizes_of_reader(
    scan: &Scan<'_>,
    unit: f32,
    taken: impl Iterator<Item = usize>,
) -> (Scratch, Total) {
    let largest = scan.largest;
    let mut sizes = Scratch::new(scan.scores.len());
    let [weights, squares] = weigh(&scan.scores, scan.norms, largest, unit, &mut sizes);
    let square = squares / weights;
    for token in taken {
        sizes[token] = 0.0;
    }
    let mut total = lengthen(&mut sizes, scan.norms, unit, square as f32);
    // Beside what is taken, all that is left may weigh too little for a number.
    if total == 0.0 {
        sizes.fill(1.0);
        total = sizes.len() as f64;
    }
    scale(&mut sizes, 1.0 / total as f32);
    scan.errors.raise(&mut sizes);
    let (log, unit) = (total.ln() + f64::from(largest), f64::from(unit));
    (sizes, Total { log: log - unit.ln(), length: square.sqrt() / unit })
}

/// What norms are multiplied by, so that their squares are in range: the inverse of the largest, or of the power of
/// two below it.
fn unit(norms: &[bf16]) -> f32 {
    // They are not negative: the largest has the most bits.
    let largest = norms.iter().map(|norm| norm.to_bits()).max().unwrap_or(0);
    let exponent = i32::from(largest >> 7) - 127;
    2.0_f32.powi(-exponent.clamp(-120, 120))
}

/// Numbers that are summed side by side.
const LANES: usize = 64;

/// Numbers whose sums stay in f32, and which stay in the first-level cache while several things are done to them.
const PART: usize = 1024;

/// The sum of what `of` makes of up to [`PART`] elements at each place, in an order that does not depend on the machine.
#[inline(always)]
fn sum_of<T: Copy>(a: &[f32], b: &[T], of: impl Fn(f32, T) -> f32) -> f64 {
    let mut sums = [0.0_f32; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += of(a[lane], b[lane]);
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *sum += of(*a, *b);
    }
    for half in [32, 16, 8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    f64::from(sums[0])
}

/// Sets `e^(score − most)`, and sums it, and its product with the square of the norm.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn weigh(scores: &[f32], norms: &[bf16], most: f32, unit: f32, out: &mut [f32]) -> [f64; 2] {
    let times_square = |weight: f32, norm: bf16| {
        let norm = unit * norm.wide();
        weight * (norm * norm)
    };
    let [mut weights, mut squares] = [0.0; 2];
    for ((out, scores), norms) in
        out.chunks_mut(PART).zip(scores.chunks(PART)).zip(norms.chunks(PART))
    {
        for (out, score) in out.iter_mut().zip(scores) {
            *out = exp(score - most);
        }
        weights += sum_of(out, out, |weight, _| weight);
        squares += sum_of(out, norms, times_square);
    }
    [weights, squares]
}

/// Multiplies each by `√(|v|² + m²)`, and sums.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn lengthen(sizes: &mut [f32], norms: &[bf16], unit: f32, square: f32) -> f64 {
    let mut total = 0.0;
    for (sizes, norms) in sizes.chunks_mut(PART).zip(norms.chunks(PART)) {
        for (size, norm) in sizes.iter_mut().zip(norms) {
            let norm = unit * norm.wide();
            *size *= (norm * norm + square).sqrt();
        }
        total += sum_of(sizes, sizes, |size, _| size);
    }
    total
}

/// The root of the sum of the squares of each reader's sizes, and the sum of the roots.
fn root_of_squares(mut own: Vec<Scratch>) -> (Scratch, f64) {
    let mut sizes = own.swap_remove(0);
    let total = if own.is_empty() { sum(&sizes) } else { add_squares(&mut sizes, &own) };
    (sizes, total)
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn sum(sizes: &[f32]) -> f64 {
    sizes.chunks(PART).map(|sizes| sum_of(sizes, sizes, |size, _| size)).sum()
}

/// Puts the root of the sum of squares in place of each number, and sums.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn add_squares(sizes: &mut [f32], others: &[Scratch]) -> f64 {
    let mut total = 0.0;
    for (part, sizes) in sizes.chunks_mut(PART).enumerate() {
        for size in &mut *sizes {
            *size *= *size;
        }
        for own in others {
            for (size, own) in sizes.iter_mut().zip(&own[part * PART..]) {
                *size += own * own;
            }
        }
        for size in &mut *sizes {
            *size = size.sqrt();
        }
        total += sum_of(sizes, sizes, |size, _| size);
    }
    total
}

/// Multiplies each size, but leaves none below the least.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn scale(sizes: &mut [f32], by: f32) {
    for size in sizes {
        *size = at_least(*size * by);
    }
}

#[inline(always)]
fn at_least(size: f32) -> f32 {
    if size > LEAST { size } else { LEAST }
}

/// Adds those of some sizes that are no smaller than a limit.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn add_large(sizes: &[f32], least: f32, out: &mut Vec<f32>) {
    let is_large = |size: f32| size >= least;
    for sizes in sizes.chunks(LANES) {
        if sizes.iter().fold(false, |any, &size| any | is_large(size)) {
            out.extend(sizes.iter().filter(|&&size| is_large(size)));
        }
    }
}

/// How many sizes are no smaller than a limit, and what the others sum to.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+avx512dq+fma+f16c", "x86_64+avx2+fma"))]
fn below(sizes: &[f32], limit: f32) -> (usize, f64) {
    let (mut count, mut total) = (0, 0.0);
    for sizes in sizes.chunks(PART) {
        count += sizes.iter().map(|&size| u32::from(size >= limit)).sum::<u32>();
        total += sum_of(sizes, sizes, |size, _| if size < limit { size } else { 0.0 });
    }
    (count as usize, total)
}
