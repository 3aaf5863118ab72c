//! Codes of two bits for each element of a key, and the logits that they predict.
//!
//! Keys are taken in blocks of [`BLOCK`] tokens. The index stores the mean `c` of each block, and of
//! each key `k` a code of the residual `r = R (k − c)`, where `R` is a random rotation
//! (`rotation.rs`): with `x` of `d` numbers in {−3/2, −1/2, 1/2, 3/2}, the steps of a uniform
//! quantiser of least error for normal numbers, and the factor `f = |r|² / (r·x)`,
//!
//! `q·k = q·c + (R q)·r ≈ q·c + f (R q)·x`.
//!
//! Over the draw of a rotation the estimate has no bias, and the standard deviation
//!
//! `σ = 0.37 |q| f ≈ 0.37 |q| |r| / √d`
//!
//! of its own for each token (Gao, Long (2024), "RaBitQ", SIGMOD, theorem 3.2; Gao et al. (2025),
//! "Practical and asymptotically optimal quantization", for codes of more than one bit). `R` follows
//! from the pipeline's seed, the layer and the KV head; statements about σ are conditional on it.
//! The query is rounded to 8 bits, so that products are sums of integers: every machine computes
//! the same scores.
//!
//! Tokens after the last whole block that a row sees are scored by their keys. Memory: 2 bits for each
//! element, 2 bytes, and the 64th part of a mean; 34 bytes and 4 for keys of 128.
//! Cost of scoring: one pass over the codes, for up to four rows together.

mod rotation;
mod scan;

use half::bf16;
use multiversion::multiversion;
use vattention_core::{
    Picks, Row, Site, Tokens,
    step::{PrefixMax, Stream},
};

use rotation::Rotation;
use scan::{CodeQuery, add_codes};

/// Tokens that share a mean.
const BLOCK: usize = 64;

/// Blocks whose means lie side by side.
const GROUP: usize = 16;

/// Elements of a key whose codes share a word.
const PER_WORD: usize = 16;

/// The step of the uniform quantiser of four levels that errs least for standard normal numbers
/// (Max (1960), "Quantizing for minimum distortion", table II).
const STEP: f32 = 0.9957;

/// Standard deviation of a logit's estimate, for a query of length 1 and a factor of 1: the cosine of
/// a residual with its code is near 0.939, and `f` is nearly `|r| / √d`.
const DEVIATION: f64 = 0.37;

/// The purpose of the rotation's random numbers: no selector's, and not the sampler's.
const PURPOSE: u16 = u16::MAX - 4;

/// Rotated, centred keys in two bits for each element.
#[derive(Clone, Debug, PartialEq)]
pub struct RotatedCodes {
    dim: usize,
    rotation: Rotation,
    /// `[blocks][words][BLOCK]`: bits `8 m + 2 k` of word `j` are of element `16 j + 4 k + m`.
    words: Vec<u32>,
    /// `f`, `[blocks · BLOCK]`.
    factors: Vec<bf16>,
    /// Rotated means, `[groups][dim][GROUP]`.
    means: Vec<bf16>,
    /// The largest of the factors of the first tokens.
    peaks: PrefixMax,
    /// Keys that make no block yet, `[tokens · dim]`.
    rest: Vec<f32>,
}

impl RotatedCodes {
    /// An index of no keys, for one KV head. The rotation is the same for every sequence.
    pub fn new(site: &Site) -> Self {
        let place = Site { sequence: 0, ..*site };
        let dim = site.shape.head_dim;
        Self {
            dim,
            rotation: Rotation::new(dim, &Stream::new(&place, PURPOSE, 0, 0)),
            words: Vec::new(),
            factors: Vec::new(),
            means: Vec::new(),
            peaks: PrefixMax::default(),
            rest: Vec::new(),
        }
    }

    /// Appends new keys `[tokens, dim]`. O(dim log dim) for each.
    pub fn append(&mut self, keys: &Tokens<'_>) {
        for token in 0..keys.len() {
            let at = self.rest.len();
            self.rest.resize(at + self.dim, 0.0);
            keys.copy_row(token, &mut self.rest[at..]);
            if self.rest.len() == BLOCK * self.dim {
                self.encode();
            }
        }
    }

    /// Bytes of codes, factors and means.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.words[..]) + size_of_val(&self.factors[..]) + size_of_val(&self.means[..])
    }

    /// Sets the logits of all visible tokens of rows that see as many, `[rows][visible]`. What the
    /// codes add to `q·c` is multiplied by `shrink`. Tokens behind the last whole block that are
    /// all picked get the least number instead.
    ///
    /// # Panics
    /// If there is not an `out` for each row, as long as what that sees.
    pub fn logits(&self, rows: &[Row<'_>], picks: &Picks, shrink: f32, out: &mut [&mut [f32]]) {
        assert_eq!(rows.len(), out.len(), "rows");
        let Some(first) = rows.first() else { return };
        let (coded, visible) = (self.coded(first), first.visible());
        let is_picked = (coded..visible).all(|token| picks.contains(token));
        for (row, out) in rows.iter().zip(&mut *out) {
            if is_picked {
                out[coded..].fill(f32::MIN);
            } else {
                row.keys().dots(coded..visible, row.query(), &mut out[coded..]);
            }
        }
        let query = |row: &Row<'_>| CodeQuery::new(row.query(), &self.rotation, shrink);
        let queries: Vec<CodeQuery> = rows.iter().map(query).collect();
        for (queries, out) in queries.chunks(scan::TOGETHER).zip(out.chunks_mut(scan::TOGETHER)) {
            add_codes(&self.words, &self.factors, &self.means, queries, coded, out);
        }
    }

    /// Standard deviations of the scores of the tokens that a row sees. O(dim).
    pub fn deviations(&self, row: &Row<'_>) -> CodeDeviations<'_> {
        let coded = self.coded(row);
        let query = row.query().iter().map(|&q| f64::from(q).powi(2)).sum::<f64>().sqrt();
        CodeDeviations {
            unit: (DEVIATION * query) as f32,
            factors: &self.factors[..coded],
            peak: self.peaks.max_of_first(coded) as f32,
        }
    }

    /// Tokens in whole blocks that a row sees.
    fn coded(&self, row: &Row<'_>) -> usize {
        row.visible().min(self.factors.len()) / BLOCK * BLOCK
    }

    /// Makes a block of the rest.
    fn encode(&mut self) {
        let (dim, block) = (self.dim, self.factors.len() / BLOCK);
        self.rest.chunks_exact_mut(dim).for_each(|key| self.rotation.apply(key));
        let mean = mean(&self.rest, dim);
        let words = dim.div_ceil(PER_WORD);
        self.words.resize((block + 1) * words * BLOCK, 0);
        for (token, key) in self.rest.chunks_exact_mut(dim).enumerate() {
            key.iter_mut().zip(&mean).for_each(|(x, c)| *x -= c.to_f32());
            let factor = bf16::from_f32(quantise(key));
            self.peaks.push(factor.to_f64());
            self.factors.push(factor);
            for (j, part) in key.chunks(PER_WORD).enumerate() {
                let codes = part.iter().enumerate();
                let word = codes.fold(0, |word, (i, &code)| {
                    word | (code as u32) << (8 * (i % 4) + 2 * (i / 4))
                });
                self.words[(block * words + j) * BLOCK + token] = word;
            }
        }
        let group = block / GROUP * GROUP * dim;
        self.means.resize(group + GROUP * dim, bf16::ZERO);
        for (i, c) in mean.into_iter().enumerate() {
            self.means[group + i * GROUP + block % GROUP] = c;
        }
        self.rest.clear();
    }
}

/// Standard deviation σ of each token's score: `unit · factor`, and 0 from the last whole block on.
#[derive(Clone, Copy, Debug)]
pub struct CodeDeviations<'a> {
    /// `0.37 |q|`.
    pub unit: f32,
    /// `f` of each token in whole blocks, `[coded]`.
    pub factors: &'a [bf16],
    /// The largest of them; infinite if any is not a number.
    pub peak: f32,
}

/// The mean of rows `[rows · dim]`.
fn mean(rows: &[f32], dim: usize) -> Vec<bf16> {
    let mut sums = vec![0.0_f64; dim];
    for row in rows.chunks_exact(dim) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let count = (rows.len() / dim) as f64;
    sums.into_iter().map(|sum| bf16::from_f64(sum / count)).collect()
}

/// Replaces numbers by codes in 0..4, and returns `f`; 0 if all are 0.
#[multiversion(targets("x86_64+avx2+fma"))]
fn quantise(r: &mut [f32]) -> f32 {
    let peak = r.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    if peak == 0.0 {
        return 0.0;
    }
    // Relative to the largest, so that squares neither vanish nor overflow.
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
