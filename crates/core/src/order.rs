//! A random order of the visible tokens that costs no memory: a keyed bijection.
//!
//! An alternating Feistel network over `Z_a × Z_b`, `a, b ≈ √n`, eight rounds, integers only: the
//! same order on every machine. Its first `b` accepted values are a uniform sample without
//! replacement, and a larger sample continues a smaller one.
//! Cost: O(1) per candidate; fewer than 1 % of candidates fall outside once `n ≥ 10⁴`.

use crate::Stream;

/// A random order of `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    keys: [u32; 8],
    a: u32,
    b: u32,
    n: u32,
}

impl Order {
    /// The order of `0..n` that blocks 0 and 1 of `stream` key. `n` is less than 2³¹.
    pub fn new(n: usize, stream: &Stream) -> Self {
        let n = n as u32;
        let mut keys = [0; 8];
        keys[..4].copy_from_slice(&stream.block(0));
        keys[4..].copy_from_slice(&stream.block(1));
        let a = ceil_sqrt(n).max(2);
        let b = n.div_ceil(a).max(2);
        Self { keys, a, b, n }
    }

    /// The tokens, in order, each once.
    pub fn tokens(self) -> impl Iterator<Item = usize> {
        (0..self.a * self.b)
            .map(move |j| self.permute(j))
            .filter(move |&x| x < self.n)
            .map(|x| x as usize)
    }

    /// The image of `j` under the bijection of `0..a·b`.
    fn permute(&self, j: u32) -> u32 {
        let (mut left, mut right) = (j / self.b, j % self.b);
        for pair in self.keys.chunks_exact(2) {
            left = add_below(left, scaled_hash(right, pair[0], self.a), self.a);
            right = add_below(right, scaled_hash(left, pair[1], self.b), self.b);
        }
        left * self.b + right
    }
}

fn ceil_sqrt(x: u32) -> u32 {
    let root = x.isqrt();
    root + u32::from(root * root < x)
}

/// `(x + y) mod modulus` for `x, y < modulus`.
fn add_below(x: u32, y: u32, modulus: u32) -> u32 {
    let sum = x + y;
    if sum >= modulus { sum - modulus } else { sum }
}

/// A keyed hash of `x`, scaled to `0..range` by the high half of a product.
fn scaled_hash(x: u32, key: u32, range: u32) -> u32 {
    let mut h = x.wrapping_mul(0x9E37_79B1).wrapping_add(key);
    h = (h ^ (h >> 16)).wrapping_mul(0x21f0_aaad);
    h = (h ^ (h >> 15)).wrapping_mul(0x735a_2d97);
    h ^= h >> 15;
    ((u64::from(h) * u64::from(range)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Shape, Site};
    use proptest::prelude::*;

    fn stream(seed: u64) -> Stream {
        let shape = Shape { query_heads: 1, kv_heads: 1, head_dim: 1, value_dim: 1 };
        Stream::new(&Site { seed, sequence: 0, layer: 0, kv_head: 0, shape }, 0, 0, 0)
    }

    #[test]
    fn roots() {
        for x in [0, 1, 2, 3, 4, 5, 8, 9, 10, 7168, 65_535, 65_536, 65_537, (1 << 31) - 1] {
            let root = u64::from(ceil_sqrt(x));
            assert!(root * root >= u64::from(x), "{x}");
            assert!(root == 0 || (root - 1) * (root - 1) < u64::from(x), "{x}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_token_once(n in 0usize..3000, seed: u64) {
            let mut tokens: Vec<usize> = Order::new(n, &stream(seed)).tokens().collect();
            tokens.sort_unstable();
            prop_assert!(tokens.into_iter().eq(0..n));
        }
    }

    /// The share of keys under which `token` is among the first `first` of `n`, and a pair of
    /// tokens both are, must be those of a uniform sample: within 6 standard errors each.
    #[test]
    fn samples_are_uniform_from_16_tokens_on() {
        for (n, first) in [(16, 4), (57, 15), (200, 30), (1000, 50)] {
            let trials = 40_000_u64;
            let mut single = vec![0_u64; n];
            let mut neighbours = 0_u64;
            for seed in 0..trials {
                let mut seen = vec![false; n];
                for token in Order::new(n, &stream(seed)).tokens().take(first) {
                    seen[token] = true;
                    single[token] += 1;
                }
                neighbours += seen.windows(2).filter(|w| w[0] && w[1]).count() as u64;
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
