//! Blocks of keys, which are hashed together with the mean and the largest norm when complete.

use multiversion::multiversion;

use super::lsh::squared_norm;
use super::{BLOCK, Lsh};

/// Hashed keys of [`BLOCK`] tokens.
#[derive(Debug)]
pub(super) struct HashBlock {
    /// `[tables][BLOCK]`.
    signatures: Vec<[u16; BLOCK]>,
    /// Mean that was subtracted from the keys; empty without centring.
    mean: Vec<f32>,
    /// Largest norm of the keys after subtraction.
    pub(super) largest: f64,
}

impl HashBlock {
    /// Counts the tables in which each key agrees with a query, given by its signature in each
    /// table.
    pub(super) fn count_agreeing_tables(&self, query: &[u16]) -> [u16; BLOCK] {
        let mut counts = [0; BLOCK];
        count_equal(&self.signatures, query, &mut counts);
        counts
    }

    /// Sums the weights of each key's buckets over the tables. `weights` are `[tables][2^bits]`.
    pub(super) fn sum_weights(&self, weights: &[Vec<f32>]) -> [f32; BLOCK] {
        let mut sums = [0.0; BLOCK];
        for (signatures, weights) in self.signatures.iter().zip(weights) {
            for (sum, &signature) in sums.iter_mut().zip(signatures) {
                *sum += weights[usize::from(signature)];
            }
        }
        sums
    }

    /// Subtracts the mean from a key.
    pub(super) fn center<'k>(&self, key: &'k mut [f32]) -> &'k [f32] {
        key.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
        key
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.signatures[..]) + size_of_val(&self.mean[..]) + size_of_val(&self.largest)
    }
}

/// Counts the signatures of each key that equal the query's, in one pass over the tables.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn count_equal(tables: &[[u16; BLOCK]], query: &[u16], counts: &mut [u16; BLOCK]) {
    let mut sums = [0_u16; BLOCK];
    for (signatures, query) in tables.iter().zip(query) {
        for (sum, signature) in sums.iter_mut().zip(signatures) {
            *sum += u16::from(signature == query);
        }
    }
    *counts = sums;
}

/// Keys after the last complete block, fewer than [`BLOCK`].
#[derive(Clone, Debug)]
pub(super) struct OpenBlock {
    keys: Vec<Vec<f32>>,
    /// Number of all keys so far.
    tokens: usize,
    /// Sum of all keys so far, if the mean is subtracted.
    sum: Option<Vec<f64>>,
}

impl OpenBlock {
    pub(super) fn new(dim: usize, center: bool) -> Self {
        Self { keys: Vec::new(), tokens: 0, sum: center.then(|| vec![0.0; dim]) }
    }

    /// Adds a key, and returns the block that the key completes.
    pub(super) fn push(&mut self, key: &[f32], lsh: &Lsh) -> Option<HashBlock> {
        self.tokens += 1;
        for (sum, &x) in self.sum.iter_mut().flatten().zip(key) {
            *sum += f64::from(x);
        }
        self.keys.push(key.to_vec());
        (self.keys.len() == BLOCK).then(|| self.close(lsh))
    }

    fn close(&mut self, lsh: &Lsh) -> HashBlock {
        let mean = |sum: &f64| (sum / self.tokens as f64) as f32;
        let mean = self.sum.iter().flatten().map(mean).collect();
        let mut block = HashBlock { signatures: Vec::new(), mean, largest: 0.0 };
        let mut keys = std::mem::take(&mut self.keys);
        let norms = keys.iter_mut().map(|key| squared_norm(block.center(key)));
        block.largest = norms.fold(0.0, f64::max).sqrt();
        block.signatures = lsh.key_signatures(&keys, block.largest);
        block
    }
}
