//! Rotary position embeddings: a pair of elements of a query or key is rotated by an angle that
//! grows with the token's position.
//!
//! Element `i` of a head pairs with `i + head_dim / 2`, the layout of Hugging Face. Frequencies and
//! angles are computed in f32, as in training; at long positions they differ from their exact
//! values.

use std::f32::consts::TAU;

use rayon::prelude::*;

/// Scaling of the frequencies, to reach beyond the context of the original training.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    },
}

/// Growth of queries with their position, by `1 + beta ln(1 + floor(position / original))`, which
/// keeps attention sharp over long contexts (`llama_4_scaling_beta`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharpening {
    /// Rate of growth.
    pub beta: f32,
    /// Context length of the original training.
    pub original: f32,
}

/// Rotary frequencies of a model.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// Radians per position, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// Factor of queries and keys.
    length: f32,
    sharpening: Option<Sharpening>,
}

/// Cosines and sines of positions, and the factors of their queries.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Number of pairs of a head, half of its elements.
    half: usize,
    /// `[positions, half]`
    cos: Vec<f32>,
    /// `[positions, half]`
    sin: Vec<f32>,
    /// Factors of queries, `[positions]`; `None` if all are 1.
    sharpened: Option<Vec<f32>>,
}

/// Consecutive entries of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Angles<'a> {
    table: &'a Table,
    first: usize,
    count: usize,
}

impl Rope {
    /// Computes the frequencies of heads with an even `head_dim`.
    pub(crate) fn new(
        head_dim: usize,
        theta: f32,
        scaling: Scaling,
        sharpening: Option<Sharpening>,
    ) -> Self {
        let frequency = |i: usize| 1.0 / theta.powf((2 * i) as f32 / head_dim as f32);
        let scaled = |i: usize| scaling.apply(frequency(i), i, (head_dim, theta));
        let frequencies = (0..head_dim / 2).map(scaled).collect();
        let length = if let Scaling::Yarn { length, .. } = scaling { length } else { 1.0 };
        Self { frequencies, length, sharpening }
    }

    /// Divides each frequency by a factor, `[head_dim / 2]`. GGUF stores `Scaling::Llama3` in this
    /// way.
    pub(crate) fn divide_by(mut self, factors: &[f32]) -> Self {
        self.frequencies
            .iter_mut()
            .zip(factors)
            .for_each(|(frequency, factor)| *frequency /= factor);
        self
    }

    /// Computes the table of the given positions.
    pub(crate) fn table(&self, positions: impl Iterator<Item = usize> + Clone) -> Table {
        let half = self.frequencies.len();
        let positions = positions.map(|position| position as f32);
        let angles = positions.clone().flat_map(|p| self.frequencies.iter().map(move |f| p * f));
        let (sin, cos) =
            angles.map(|angle| (self.length * angle.sin(), self.length * angle.cos())).unzip();
        let sharpened = self.sharpening.map(|it| positions.map(|p| it.factor_at(p)).collect());
        Table { half, cos, sin, sharpened }
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
        let Table { half, cos, sin, .. } = self.table;
        let half = *half;
        let places = self.first * half..(self.first + self.count) * half;
        let angles =
            cos[places.clone()].par_chunks_exact(half).zip(sin[places].par_chunks_exact(half));
        let positions = rows.par_chunks_exact_mut(rows.len() / self.count);
        positions.zip(angles).with_min_len(64).for_each(|(heads, (cos, sin))| {
            heads.chunks_exact_mut(2 * half).for_each(|head| rotate(head, cos, sin));
        });
    }

    /// Multiplies queries `[positions, heads, head_dim]` by the factors of their positions.
    pub(crate) fn sharpen(self, queries: &mut [f32]) {
        let Some(factors) = &self.table.sharpened else { return };
        let factors = &factors[self.first..self.first + self.count];
        for (query, factor) in queries.chunks_exact_mut(queries.len() / self.count).zip(factors) {
            for number in query {
                *number *= factor;
            }
        }
    }
}

/// Rotates one head by its angles.
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

impl Sharpening {
    fn factor_at(self, position: f32) -> f32 {
        1.0 + self.beta * (1.0 + (position / self.original).floor()).ln()
    }
}

impl Scaling {
    /// Returns the scaled frequency of pair `i` of a head with `head_dim` elements.
    fn apply(self, frequency: f32, i: usize, (head_dim, theta): (usize, f32)) -> f32 {
        match self {
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
            Self::Yarn { factor, fast, slow, original, .. } => {
                // Pair that makes `turns` turns within `original`.
                let pair = |turns: f32| {
                    head_dim as f32 * (original / (turns * TAU)).ln() / (2.0 * theta.ln())
                };
                let from = pair(fast).floor().max(0.0);
                let to = pair(slow).ceil().min((head_dim - 1) as f32).max(from + 1e-3);
                let low_share = ((i as f32 - from) / (to - from)).clamp(0.0, 1.0);
                low_share * frequency / factor + (1.0 - low_share) * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: Scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };

    #[test]
    fn llama3_divides_low_frequencies_and_interpolates_to_high_ones() {
        let turns = |count: f32| count * TAU / 8192.0;
        let apply = |frequency| LLAMA3.apply(frequency, 0, (16, 10000.0));
        assert_eq!(apply(turns(5.0)), turns(5.0));
        assert_eq!(apply(turns(0.5)), turns(0.5) / 8.0);
        let middle = apply(turns(2.5));
        assert!((middle / turns(2.5) - 0.5625).abs() < 1e-6);
        for edge in [1.0_f32, 4.0] {
            let (below, above) = (apply(turns(edge * 0.9999)), apply(turns(edge * 1.0001)));
            assert!((above / below - 1.0).abs() < 2e-3, "{below} {above}");
        }
    }

    #[test]
    fn tables_agree_on_common_positions() {
        let rope = Rope::new(16, 10000.0, LLAMA3, Some(Sharpening { beta: 0.1, original: 4.0 }));
        let (all, few) = (rope.table(3..10), rope.table(7..9));
        let row = |i: usize| (i as f32).sin();
        let [mut a, mut b] = [(); 2].map(|()| (0..2 * 3 * 16).map(row).collect::<Vec<_>>());
        for (angles, rows) in [(all.all().narrow(4, 2), &mut a), (few.all(), &mut b)] {
            angles.rotate(rows);
            angles.sharpen(rows);
        }
        assert_eq!(a, b);
    }

    #[test]
    fn products_of_rotated_rows_depend_on_distance_only() {
        let rope = Rope::new(8, 100.0, Scaling::Linear { factor: 2.0 }, None);
        let product = |p, q| -> f32 {
            let rotate = |p| {
                let mut row: Vec<f32> = (1..=8).map(|i| i as f32).collect();
                rope.table(p..=p).all().rotate(&mut row);
                row
            };
            rotate(p).iter().zip(rotate(q)).map(|(a, b)| a * b).sum()
        };
        assert!((product(5, 2) - product(13, 10)).abs() < 1e-3);
        assert!((product(5, 2) - product(5, 5)).abs() > 1.0);
    }

    #[test]
    fn queries_grow_at_every_multiple_of_the_original_context() {
        let sharpening = Sharpening { beta: 0.1, original: 4.0 };
        assert_eq!([0.0, 3.0].map(|p| sharpening.factor_at(p)), [1.0, 1.0]);
        assert_eq!(sharpening.factor_at(4.0), sharpening.factor_at(7.0));
        assert!((sharpening.factor_at(8.0) - (1.0 + 0.1 * 3.0_f32.ln())).abs() < 1e-7);
    }
}
