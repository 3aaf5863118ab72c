//! Codes of two bits for each element of a key, and the logits that they predict.
//!
//! Keys are encoded in blocks of [`BLOCK`] tokens. The index stores the mean `c` of each block, and
//! for each key `k` a code of the residual `r = R (k − c)`, where `R` is a random rotation
//! ([`Rotation`]). The code is a vector `x` of `d` numbers in {−3/2, −1/2, 1/2, 3/2}, the levels
//! of the uniform quantiser with the least error for normal numbers. With the factor
//! `f = |r|² / (r·x)`,
//!
//! `q·k = q·c + (R q)·r ≈ q·c + f (R q)·x`.
//!
//! Over the draw of a rotation the estimate is unbiased, and its standard deviation, which differs
//! between tokens, is
//!
//! `σ = 0.37 |q| f ≈ 0.37 |q| |r| / √d`
//!
//! (Gao, Long (2024), "RaBitQ", SIGMOD, theorem 3.2; Gao et al. (2025), "Practical and
//! asymptotically optimal quantization", for codes of more than one bit). `R` is derived from the
//! pipeline's seed, the layer and the KV head; statements about σ are conditional on this seed. The
//! query is rounded to 8 bits, so that products are sums of integers, and every machine computes
//! the same scores.
//!
//! Tokens after the last complete block that is visible to a row are scored by their keys. Memory
//! per token: 2 bits for each element, 2 bytes for `f`, and the 64th part of a mean; that is 34
//! bytes and 4 bytes for keys of 128 elements. Cost of scoring: one pass over the codes for up to
//! four rows.

mod code_blocks;
mod code_scan;
mod scan;

use half::bf16;
use multiversion::multiversion;
use vattention_core::{
    Picks, Row, Site, Tokens,
    step::{PrefixMax, Stream},
};

use crate::{Rotation, Segmented};
use code_blocks::CodeBlocks;
pub use code_scan::CodeScan;

/// Number of tokens that share a mean.
const BLOCK: usize = 64;

/// Number of blocks whose means are interleaved.
const GROUP: usize = 16;

/// Number of tokens whose logits are predicted together, for each row.
pub const PART: usize = BLOCK * GROUP;

/// Number of elements of a key whose codes share a word.
const PER_WORD: usize = 16;

/// Step of the uniform quantiser of four levels with the least error for standard normal numbers
/// (Max (1960), "Quantizing for minimum distortion", table II).
const STEP: f32 = 0.9957;

/// Standard deviation of a logit's estimate, for a query of length 1 and a factor of 1. The cosine
/// of a residual with its code is near 0.939, and `f` is nearly `|r| / √d`.
const DEVIATION: f64 = 0.37;

/// Purpose of the stream that draws the rotation; no other stream has this purpose.
const PURPOSE: u16 = u16::MAX - 4;

/// Codes of rotated, centred keys, two bits for each element.
#[derive(Clone, Debug, PartialEq)]
pub struct RotatedCodes {
    dim: usize,
    rotation: Rotation,
    /// Codes and means, an item for each token.
    blocks: Segmented<CodeBlocks>,
    /// `f`, `[blocks · BLOCK]`.
    factors: Vec<bf16>,
    /// Largest factor of each prefix of the tokens.
    peaks: PrefixMax,
    /// Keys after the last complete block, `[tokens · dim]`.
    rest: Vec<f32>,
}

impl RotatedCodes {
    /// Creates an index without keys, for one KV head. The rotation is the same for every sequence.
    pub fn new(site: &Site) -> Self {
        let place = Site { sequence: 0, ..*site };
        let dim = site.shape.head_dim;
        Self {
            dim,
            rotation: Rotation::new(dim, &Stream::new(&place, PURPOSE, 0, 0)),
            blocks: Segmented::new(CodeBlocks::new(dim)),
            factors: Vec::new(),
            peaks: PrefixMax::default(),
            rest: Vec::new(),
        }
    }

    /// Appends new keys `[tokens, dim]`. O(dim log dim) for each.
    pub fn append(&mut self, keys: &Tokens<'_>) {
        for token in 0..keys.len() {
            let start = self.rest.len();
            self.rest.resize(start + self.dim, 0.0);
            keys.copy_row(token, &mut self.rest[start..]);
            if self.rest.len() == BLOCK * self.dim {
                self.encode();
            }
        }
    }

    /// Removes all but the first keys, which are `keys`, `[tokens, dim]`. O(dim · `BLOCK`).
    pub fn truncate(&mut self, keys: &Tokens<'_>) {
        let coded = (keys.len() / BLOCK * BLOCK).min(self.factors.len());
        if coded < self.factors.len() {
            self.blocks.truncate(coded);
            self.factors.truncate(coded);
            self.peaks.truncate(coded);
            self.rest.clear();
            self.append(&keys.range(coded..keys.len()));
        }
        self.rest.truncate((keys.len() - coded) * self.dim);
    }

    /// Moves codes and means to memory that later clones share. Clones copy the factors, which are
    /// 2 bytes per token.
    pub fn share(&mut self) {
        self.blocks.share();
    }

    /// Bytes of codes, factors and means. Shared memory is [divided](Segmented::bytes) among those
    /// that use it.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes() + size_of_val(&self.factors[..])
    }

    /// Writes the predicted logits of all visible tokens to `out`, `[rows][visible]`. All rows see
    /// the same number of tokens.
    ///
    /// The term of the codes, `f (R q)·x`, is multiplied by `shrink`. If all tokens after the last
    /// complete block are picked, their logits are set to the least f32.
    ///
    /// # Panics
    /// If `out` does not have one slice of the length `visible` for each row.
    pub fn logits(&self, rows: &[Row<'_>], picks: &Picks, shrink: f32, out: &mut [&mut [f32]]) {
        assert_eq!(rows.len(), out.len(), "rows");
        let scan = self.scan(rows, picks, shrink, 1.0);
        for tokens in scan.parts() {
            let mut out: Vec<&mut [f32]> =
                out.iter_mut().map(|out| &mut out[tokens.clone()]).collect();
            scan.predict(tokens, 0, &mut out);
        }
    }

    /// Prepares predictions of the logits of all visible tokens, multiplied by `scale`, for one
    /// part of the tokens after another. See [`logits`](Self::logits).
    pub fn scan(&self, rows: &[Row<'_>], picks: &Picks, shrink: f32, scale: f32) -> CodeScan<'_> {
        CodeScan::new(self, rows, picks, [shrink, scale])
    }

    /// Standard deviations of the predictions for the tokens that are visible to a row. O(dim).
    pub fn deviations(&self, row: &Row<'_>) -> CodeDeviations<'_> {
        let coded = self.coded(row);
        let query = row.query().iter().map(|&q| f64::from(q).powi(2)).sum::<f64>().sqrt();
        CodeDeviations {
            unit: (DEVIATION * query) as f32,
            factors: &self.factors[..coded],
            peak: self.peaks.max_of_first(coded) as f32,
        }
    }

    /// Number of tokens in complete blocks that are visible to a row.
    fn coded(&self, row: &Row<'_>) -> usize {
        row.visible().min(self.factors.len()) / BLOCK * BLOCK
    }

    /// Encodes the keys of `rest` as a block.
    fn encode(&mut self) {
        let dim = self.dim;
        self.rest.chunks_exact_mut(dim).for_each(|key| self.rotation.apply(key));
        let mean = mean(&self.rest, dim);
        for key in self.rest.chunks_exact_mut(dim) {
            key.iter_mut().zip(&mean).for_each(|(x, c)| *x -= c.to_f32());
            let factor = bf16::from_f32(quantise(key));
            self.peaks.push(factor.to_f64());
            self.factors.push(factor);
        }
        self.blocks.own_mut().push(&self.rest, &mean);
        self.rest.clear();
    }
}

/// Standard deviation σ of each token's predicted logit: `unit · factor`, and 0 after the last
/// complete block.
#[derive(Clone, Copy, Debug)]
pub struct CodeDeviations<'a> {
    /// `0.37 |q|`.
    pub unit: f32,
    /// `f` of each token in complete blocks, `[coded]`.
    pub factors: &'a [bf16],
    /// Largest factor; infinite if any is NaN.
    pub peak: f32,
}

/// Mean of rows `[rows · dim]`.
fn mean(rows: &[f32], dim: usize) -> Vec<bf16> {
    let mut sums = vec![0.0_f64; dim];
    for row in rows.chunks_exact(dim) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let count = (rows.len() / dim) as f64;
    sums.into_iter().map(|sum| bf16::from_f64(sum / count)).collect()
}

/// Replaces the elements of a residual by codes in 0..4, and returns `f`, which is 0 if all
/// elements are 0.
#[multiversion(targets("x86_64+avx2+fma"))]
fn quantise(r: &mut [f32]) -> f32 {
    let peak = r.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    if peak == 0.0 {
        return 0.0;
    }
    // Division by the largest element prevents squares from underflow and overflow.
    let square = r.iter().map(|x| (x / peak) * (x / peak)).sum::<f32>();
    let step = STEP * peak * (square / r.len() as f32).sqrt();
    let mut product = 0.0_f32;
    for x in r {
        let code = (*x / step + 2.0).floor().clamp(0.0, 3.0);
        product += *x / peak * (code - 1.5);
        *x = code;
    }
    peak * (square / product)
}

#[cfg(test)]
mod tests;
