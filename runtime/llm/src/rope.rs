//! Rotary position embeddings: a pair of elements of a query or key is rotated by an angle that
//! grows with the token's position.
//!
//! The first half of a head's rotated elements pairs with the second half, or neighbours pair with
//! each other. Frequencies and angles are computed in f32, as in training; at long positions they
//! differ from their exact values.

use std::f32::consts::TAU;

use rayon::prelude::*;

/// Rotary embedding of a model's layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f32,
    /// Scaling of the frequencies.
    pub scaling: Scaling,
    /// Number of first elements of a head that are rotated, even.
    pub dims: usize,
    /// True if rotated elements pair with their neighbours, false if the first half pairs with the
    /// second.
    pub interleaved: bool,
}

/// Scaling of the frequencies, to reach beyond the context of the original training.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// Division of all frequencies by a factor (`linear`).
    Linear {
        /// Divisor of the frequencies.
        factor: f32,
    },
    /// Division of low frequencies by a factor; high frequencies are unchanged, and those between
    /// are interpolated (`llama3`).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Frequencies with fewer turns than this within `original` are low.
        low: f32,
        /// Frequencies with more turns than this within `original` are high.
        high: f32,
        /// Context length of the original training.
        original: f32,
    },
    /// Like `Llama3`, but interpolated by the index of the frequency; also scales all queries and
    /// keys (`yarn`, [arXiv 2309.00071](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// Divisor of low frequencies.
        factor: f32,
        /// Frequencies with more turns than this within `original` are unchanged.
        fast: f32,
        /// Frequencies with fewer turns than this within `original` are divided.
        slow: f32,
        /// Context length of the original training.
        original: f32,
        /// Factor of queries and keys.
        length: f32,
        /// True if the range of interpolated frequencies is rounded to whole indices.
        truncates: bool,
    },
    /// Division of each frequency by its own factor; also scales all queries and keys (`longrope`,
    /// [arXiv 2402.13753](https://arxiv.org/abs/2402.13753)). A model that reaches beyond its
    /// original context uses the long factors for every sequence, others the short factors:
    /// sequences of different lengths can share the keys of a common prefix.
    LongRope {
        /// Divisors of the frequencies.
        factors: Vec<f32>,
        /// Factor of queries and keys.
        length: f32,
    },
}

/// Growth of queries with their position, which keeps attention sharp over long contexts
/// (`llama_4_scaling_beta`): the factor `1 + beta ln(1 + floor((position + first) / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharpening {
    /// Rate of growth.
    pub beta: f32,
    /// Context length of the original training.
    pub original: f32,
    /// Number of the first position.
    pub first: f32,
}

/// Rotary frequencies of a model.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians per position, `[dims / 2]`.
    frequencies: Vec<f32>,
    /// Factor of queries and keys.
    length: f32,
    interleaved: bool,
    /// Number of elements of a head.
    head_dim: usize,
}

/// Cosines and sines of positions.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Number of rotated pairs of a head.
    half: usize,
    /// Number of elements of a head.
    head_dim: usize,
    interleaved: bool,
    /// `[positions, half]`
    cos: Vec<f32>,
    /// `[positions, half]`
    sin: Vec<f32>,
}

/// Tables of all rotary embeddings of a model, and the factors of queries, for some positions.
pub(crate) struct Tables {
    pub(crate) ropes: Vec<Table>,
    /// `[positions]`; `None` if all are 1.
    pub(crate) factors: Option<Vec<f32>>,
}

/// Rotation and growth of a layer's queries and keys at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions<'a> {
    angles: Option<Angles<'a>>,
    /// Factors of queries, `[positions]`.
    factors: Option<&'a [f32]>,
}

/// Consecutive entries of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Angles<'a> {
    table: &'a Table,
    first: usize,
    count: usize,
}

impl Rope {
    /// Computes the frequencies of heads with `head_dim` elements.
    pub(crate) fn new(head_dim: usize, rotary: &Rotary) -> Self {
        let Rotary { theta, dims, interleaved, .. } = *rotary;
        let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f32 / dims as f32);
        let scaled = |i: usize| rotary.scaling.apply(frequency(i), i, (dims, theta));
        let frequencies = (0..dims / 2).map(scaled).collect();
        let length = match rotary.scaling {
            Scaling::Yarn { length, .. } | Scaling::LongRope { length, .. } => length,
            _ => 1.0,
        };
        Self { frequencies, length, interleaved, head_dim }
    }

    /// Number of rotated pairs of a head.
    pub(crate) fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Divides each frequency by a factor, `[dims / 2]`. GGUF stores `Scaling::Llama3` in this way.
    pub(crate) fn divide_by(&mut self, factors: &[f32]) {
        for (frequency, factor) in self.frequencies.iter_mut().zip(factors) {
            *frequency /= factor;
        }
    }

    /// Computes the table of the given positions.
    pub(crate) fn table(&self, positions: impl Iterator<Item = usize>) -> Table {
        let half = self.frequencies.len();
        let positions = positions.map(|position| position as f32);
        let angles = positions.flat_map(|p| self.frequencies.iter().map(move |f| p * f));
        let (sin, cos) =
            angles.map(|angle| (self.length * angle.sin(), self.length * angle.cos())).unzip();
        let Self { interleaved, head_dim, .. } = *self;
        Table { half, head_dim, interleaved, cos, sin }
    }
}

impl Table {
    /// Returns all positions of the table.
    pub(crate) fn all(&self) -> Angles<'_> {
        Angles { table: self, first: 0, count: self.cos.len() / self.half }
    }
}

impl Angles<'_> {
    /// Returns `count` of these positions, from `first` on.
    pub(crate) fn narrow(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.count, "positions that are not there");
        Self { first: self.first + first, count, ..self }
    }

    /// Rotates queries or keys `[positions, heads, head_dim]`.
    pub(crate) fn rotate(self, rows: &mut [f32]) {
        let Table { cos, sin, .. } = self.table;
        let Table { half, head_dim, interleaved, .. } = *self.table;
        let places = self.first * half..(self.first + self.count) * half;
        let angles =
            cos[places.clone()].par_chunks_exact(half).zip(sin[places].par_chunks_exact(half));
        let positions = rows.par_chunks_exact_mut(rows.len() / self.count);
        positions.zip(angles).with_min_len(64).for_each(|(heads, (cos, sin))| {
            for head in heads.chunks_exact_mut(head_dim) {
                let rotated = &mut head[..2 * half];
                if interleaved {
                    rotate_neighbours(rotated, cos, sin);
                } else {
                    rotate(rotated, cos, sin);
                }
            }
        });
    }
}

impl Tables {
    /// Returns all positions for a layer with the rotary embedding number `rope`, if it has one.
    pub(crate) fn positions(&self, rope: Option<usize>, scales_queries: bool) -> Positions<'_> {
        Positions {
            angles: rope.map(|rope| self.ropes[rope].all()),
            factors: self.factors.as_deref().filter(|_| scales_queries),
        }
    }
}

impl Positions<'_> {
    /// Returns `count` of these positions, from `first` on.
    pub(crate) fn narrow(self, first: usize, count: usize) -> Self {
        Self {
            angles: self.angles.map(|angles| angles.narrow(first, count)),
            factors: self.factors.map(|factors| &factors[first..first + count]),
        }
    }

    /// Rotates queries `[positions, query_heads, head_dim]` and keys
    /// `[positions, kv_heads, head_dim]`, and multiplies queries by their factors.
    pub(crate) fn apply(self, queries: &mut [f32], keys: &mut [f32]) {
        if let Some(angles) = self.angles {
            angles.rotate(queries);
            angles.rotate(keys);
        }
        let Some(factors) = self.factors else { return };
        for (query, factor) in queries.chunks_exact_mut(queries.len() / factors.len()).zip(factors)
        {
            for number in query {
                *number *= factor;
            }
        }
    }
}

/// Rotates the elements of one head by its angles; neighbours are pairs.
fn rotate_neighbours(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ([a, b], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Rotates the elements of one head by its angles; the first half pairs with the second.
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Factor of queries and keys in yarn: `1 + 0.1 ln factor`, or with `scales` the ratio of two such
/// factors, whose logarithms are multiplied by the scales.
pub(crate) fn yarn_length(factor: f32, scales: Option<(f32, f32)>) -> f32 {
    let length = |scale: f32| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
    scales.map_or_else(|| length(1.0), |(scale, scale_all)| length(scale) / length(scale_all))
}

/// Factor of queries and keys in longrope, for a context `factor` times the original one.
pub(crate) fn longrope_length(factor: f32, original: f32) -> f32 {
    let (factor, original) = (f64::from(factor), f64::from(original));
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() as f32 }
}

impl Sharpening {
    /// Returns the factor of the query at a position.
    pub(crate) fn factor(self, position: usize) -> f32 {
        let Self { beta, original, first } = self;
        1.0 + beta * (1.0 + ((position as f32 + first) / original).floor()).ln()
    }
}

impl Scaling {
    /// Returns the scaled frequency of pair `i` of a head with `dims` rotated elements.
    fn apply(&self, frequency: f32, i: usize, (dims, theta): (usize, f32)) -> f32 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                if turns < low {
                    frequency / factor
                } else if turns > high {
                    frequency
                } else {
                    let high_share = (turns - low) / (high - low);
                    (1.0 - high_share) * frequency / factor + high_share * frequency
                }
            }
            Self::LongRope { ref factors, .. } => frequency / factors[i],
            Self::Yarn { factor, fast, slow, original, truncates, .. } => {
                // Pair that makes `turns` turns within `original`.
                let pair =
                    |turns: f32| dims as f32 * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
                let (from, to) = if truncates {
                    (pair(fast).floor(), pair(slow).ceil())
                } else {
                    (pair(fast), pair(slow))
                };
                let from = from.max(0.0);
                let to = to.min((dims - 1) as f32).max(from + 1e-3);
                let low_share = ((i as f32 - from) / (to - from)).clamp(0.0, 1.0);
                low_share * frequency / factor + (1.0 - low_share) * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests;
