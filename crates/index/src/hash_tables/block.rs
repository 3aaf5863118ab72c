//! Keys that are hashed together, once, with the mean and the largest norm of their time.

use multiversion::multiversion;

use super::lsh::squared_norm;
use super::{BLOCK, Lsh};

/// The hashed keys of [`BLOCK`] tokens.
#[derive(Debug)]
pub(super) struct HashBlock {
    /// `[tables][BLOCK]`.
    signatures: Vec<[u16; BLOCK]>,
    /// What was subtracted from the keys; empty: nothing.
    mean: Vec<f32>,
    /// The largest norm after that.
    pub(super) largest: f64,
}

impl HashBlock {
    /// In how many tables each key agrees with a query.
    pub(super) fn agreeing(&self, query: &[u16]) -> [u16; BLOCK] {
        let mut counts = [0; BLOCK];
        count_equal(&self.signatures, query, &mut counts);
        counts
    }

    /// A key as it was hashed.
    pub(super) fn centered<'k>(&self, key: &'k mut [f32]) -> &'k [f32] {
        key.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
        key
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.signatures[..]) + size_of_val(&self.mean[..]) + size_of_val(&self.largest)
    }
}

/// Goes once over the signatures, table by table.
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

/// The keys after the last block, fewer than [`BLOCK`].
#[derive(Clone, Debug)]
pub(super) struct OpenBlock {
    keys: Vec<Vec<f32>>,
    /// All keys so far, and their sum if it is to be subtracted.
    tokens: usize,
    sum: Option<Vec<f64>>,
}

impl OpenBlock {
    pub(super) fn new(dim: usize, center: bool) -> Self {
        Self { keys: Vec::new(), tokens: 0, sum: center.then(|| vec![0.0; dim]) }
    }

    /// Adds a key; the block that it completes.
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
        let norms = keys.iter_mut().map(|key| squared_norm(block.centered(key)));
        block.largest = norms.fold(0.0, f64::max).sqrt();
        block.signatures = lsh.key_signatures(&keys, block.largest);
        block
    }
}
