//! A random order of the visible tokens that needs no memory: a keyed bijection.
//!
//! The bijection is an alternating Feistel network of eight rounds over `Z_a × Z_b`, with
//! `a, b ≈ √n`. It uses integers only, so the order is the same on every machine. The first values
//! below `n` are a uniform sample without replacement, and a larger sample continues a smaller one.
//!
//! Candidates are computed in blocks of [`BLOCK`], by vector instructions, at a cost of O(1) each.
//! For `n ≥ 10⁴` fewer than 1 % of the candidates are rejected because their value is `n` or more.

use multiversion::multiversion;

use crate::step::{Picks, Stream};

/// A random order of `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    keys: [u32; 8],
    a: u32,
    b: u32,
    n: u32,
}

/// Number of candidates computed at a time, enough for their rounds to overlap in the processor.
const BLOCK: usize = 128;

impl Order {
    /// Creates the order of `0..n` whose keys are blocks 0 and 1 of `stream`. `n` is less than 2³¹.
    pub fn new(n: usize, stream: &Stream) -> Self {
        let n = n as u32;
        let mut keys = [0; 8];
        keys[..4].copy_from_slice(&stream.block(0));
        keys[4..].copy_from_slice(&stream.block(1));
        let a = ceil_sqrt(n).max(2);
        let b = n.div_ceil(a).max(2);
        Self { keys, a, b, n }
    }

    /// Keys of the rounds, and the sides `a` and `b` of the domain, from which a device can compute
    /// the same order.
    pub fn parameters(&self) -> ([u32; 8], [u32; 2]) {
        (self.keys, [self.a, self.b])
    }

    /// All tokens in this order, each once.
    pub fn tokens(self) -> impl Iterator<Item = usize> {
        let blocks = (0..self.candidates()).step_by(BLOCK);
        let images =
            blocks.flat_map(move |first| block(&self, first).into_iter().take(self.left(first)));
        images.filter(move |&x| x < self.n).map(|x| x as usize)
    }

    /// Returns draws from the beginning of the order.
    pub fn draws(self) -> Draws {
        Draws { order: self, next: 0 }
    }

    /// Size of the bijection's domain.
    fn candidates(&self) -> u32 {
        self.a * self.b
    }

    /// Number of candidates in the block that begins at `first`.
    fn left(&self, first: u32) -> usize {
        BLOCK.min((self.candidates() - first) as usize)
    }
}

/// The tokens of an [`Order`], drawn a few at a time.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    order: Order,
    /// The next candidate.
    next: u32,
}

impl Draws {
    /// Appends the next `count` tokens that are not in `picks` to `out`, or fewer if the order
    /// ends.
    ///
    /// O(count · n / n_s) with `n_s` tokens not in `picks`.
    pub fn fill(&mut self, picks: &Picks, count: usize, out: &mut Vec<u32>) {
        let n = self.order.n;
        let accept = |x: u32| x < n && !picks.contains(x as usize);
        let mut missing = count;
        while missing > 0 && self.next < self.order.candidates() {
            let images = block(&self.order, self.next);
            let images = &images[..self.order.left(self.next)];
            let mut accepted = [0; BLOCK];
            let mut found = 0;
            for &x in images {
                accepted[found % BLOCK] = x;
                found += usize::from(accept(x));
            }
            let used = found.min(missing);
            out.extend_from_slice(&accepted[..used]);
            missing -= used;
            let mut places = (0..images.len()).filter(|&place| accept(images[place]));
            let end = if used < found { places.nth(used) } else { None };
            self.next += end.unwrap_or(images.len()) as u32;
        }
    }
}

/// Images of the [`BLOCK`] candidates from `first` on under the bijection of `0..a·b`. Images of
/// candidates beyond `a·b` are meaningless.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn block(order: &Order, first: u32) -> [u32; BLOCK] {
    let &Order { keys, a, b, .. } = order;
    let (mut left, mut right) = coordinates(first, b);
    // The compiler does not vectorize loops over zipped iterators here.
    for pair in keys.as_chunks::<2>().0 {
        for i in 0..BLOCK {
            left[i] = add_below(left[i], scaled_hash(right[i], pair[0], a), a);
        }
        for i in 0..BLOCK {
            right[i] = add_below(right[i], scaled_hash(left[i], pair[1], b), b);
        }
    }
    for i in 0..BLOCK {
        left[i] = left[i].wrapping_mul(b).wrapping_add(right[i]);
    }
    left
}

/// `(j / b, j % b)` of [`BLOCK`] candidates `j` from `first` on.
#[inline(always)]
fn coordinates(first: u32, b: u32) -> ([u32; BLOCK], [u32; BLOCK]) {
    let (mut left, mut right) = ([0; BLOCK], [0; BLOCK]);
    let (row, column) = (first / b, first % b);
    for (i, (x, y)) in left.iter_mut().zip(&mut right).enumerate() {
        let beyond = column + i as u32;
        // Vectors cannot divide; if `b` is at least a block, the block spans at most two rows.
        let rows = if b as usize >= BLOCK { u32::from(beyond >= b) } else { beyond / b };
        (*x, *y) = (row + rows, beyond - rows * b);
    }
    (left, right)
}

fn ceil_sqrt(x: u32) -> u32 {
    let root = x.isqrt();
    root + u32::from(root * root < x)
}

/// `(x + y) mod modulus` for `x, y < modulus`.
#[inline(always)]
fn add_below(x: u32, y: u32, modulus: u32) -> u32 {
    let sum = x + y;
    sum.min(sum.wrapping_sub(modulus))
}

/// A keyed hash of `x`, scaled to `0..range` by the high half of a product. `range` fits 16 bits,
/// so that the halves of the hash can be multiplied separately, without wider numbers.
#[inline(always)]
fn scaled_hash(x: u32, key: u32, range: u32) -> u32 {
    let mut h = x.wrapping_mul(0x9E37_79B1).wrapping_add(key);
    h = (h ^ (h >> 16)).wrapping_mul(0x21f0_aaad);
    h = (h ^ (h >> 15)).wrapping_mul(0x735a_2d97);
    h ^= h >> 15;
    ((h >> 16) * range + (((h & 0xFFFF) * range) >> 16)) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Shape, Site};
    use proptest::prelude::*;

    fn stream(seed: u64) -> Stream {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        Stream::new(&Site { seed, sequence: 0, layer: 0, kv_head: 0, shape }, 0, 0, 0)
    }

    #[test]
    fn square_roots_are_rounded_up() {
        for x in [0, 1, 2, 3, 4, 5, 8, 9, 10, 7168, 65_535, 65_536, 65_537, (1 << 31) - 1] {
            let root = u64::from(ceil_sqrt(x));
            assert!(root * root >= u64::from(x), "{x}");
            assert!(root == 0 || (root - 1) * (root - 1) < u64::from(x), "{x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn each_token_occurs_once(n in 0usize..3000, seed: u64) {
            let mut tokens: Vec<usize> = Order::new(n, &stream(seed)).tokens().collect();
            tokens.sort_unstable();
            prop_assert!(tokens.into_iter().eq(0..n));
        }

        /// The tokens drawn in parts of any size are the unpicked tokens of the order.
        #[test]
        fn draws_continue_where_they_ended(
            n in 0usize..3000,
            step in 1usize..4,
            parts in prop::collection::vec(0usize..400, 0..9),
            seed: u64,
        ) {
            let mut picks = Picks::new(n);
            picks.take_all((0..n).step_by(step));
            let order = Order::new(n, &stream(seed));
            let expected: Vec<u32> =
                order.tokens().filter(|&token| !picks.contains(token)).map(|x| x as u32).collect();
            let (mut draws, mut drawn) = (order.draws(), Vec::new());
            let mut count = 0;
            for part in parts {
                count += part;
                draws.fill(&picks, part, &mut drawn);
                prop_assert_eq!(&drawn[..], &expected[..count.min(expected.len())]);
            }
        }

        /// The scaled hash is the high half of a 64-bit product.
        #[test]
        fn hashes_are_scaled_by_the_high_half(
            x in 0_u32..46_341,
            key: u32,
            range in 1_u32..46_342,
        ) {
            let mut h = x.wrapping_mul(0x9E37_79B1).wrapping_add(key);
            h = (h ^ (h >> 16)).wrapping_mul(0x21f0_aaad);
            h = (h ^ (h >> 15)).wrapping_mul(0x735a_2d97);
            h ^= h >> 15;
            let wide = (u64::from(h) * u64::from(range)) >> 32;
            prop_assert_eq!(u64::from(scaled_hash(x, key, range)), wide);
        }
    }

    /// Over all keys, each token and each pair of neighbours are among the first `first` of `n`
    /// tokens as often as in a uniform sample, within 6 standard errors.
    #[test]
    fn samples_are_uniform_from_16_tokens_on() {
        for (n, first) in [(16, 4), (57, 15), (200, 30), (1000, 50)] {
            let trials = 40_000_u64;
            let mut single = vec![0_u64; n];
            let mut neighbours = 0_u64;
            for seed in 0..trials {
                let mut drawn = vec![false; n];
                for token in Order::new(n, &stream(seed)).tokens().take(first) {
                    drawn[token] = true;
                    single[token] += 1;
                }
                neighbours += drawn.windows(2).filter(|w| w[0] && w[1]).count() as u64;
            }
            let p = first as f64 / n as f64;
            let sd = (trials as f64 * p * (1.0 - p)).sqrt();
            for (token, &count) in single.iter().enumerate() {
                let z = (count as f64 - trials as f64 * p) / sd;
                assert!(z.abs() < 6.0, "n = {n}: token {token} has z = {z}");
            }
            let pairs = p * (first - 1) as f64 / (n - 1) as f64 * (n - 1) as f64 * trials as f64;
            let z = (neighbours as f64 - pairs) / pairs.sqrt();
            assert!(z.abs() < 6.0, "n = {n}: neighbours have z = {z}");
        }
    }
}
