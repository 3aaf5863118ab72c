//! Vectors of all tokens, stored by coordinate, so that a product with some coordinates reads only
//! these.

use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

/// Vectors of all tokens, `[columns][tokens]`, in bf16, which has the range of f32.
#[derive(Clone, Debug)]
pub struct Columns(Vec<Vec<bf16>>);

impl Columns {
    /// Creates `count` columns without tokens.
    pub fn new(count: usize) -> Self {
        Self(vec![Vec::new(); count])
    }

    /// Number of columns.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds the vector of the next token, `[columns]`, rounded to bf16.
    pub fn push(&mut self, numbers: &[f32]) {
        for (column, &x) in self.0.iter_mut().zip(numbers) {
            column.push(bf16::from_f32(x));
        }
    }

    /// Removes all but the first `tokens` vectors.
    pub fn truncate(&mut self, tokens: usize) {
        self.0.iter_mut().for_each(|column| column.truncate(tokens));
    }

    /// Adds `weight` times a column to the scores of the first tokens, `[visible]`.
    pub fn add_multiple(&self, column: usize, weight: f32, scores: &mut [f32]) {
        add_multiple(self.0[column].reinterpret_cast(), weight, scores);
    }

    /// Bytes of the columns: 2 for each token and column.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|column| size_of_val(&column[..])).sum()
    }

    /// Vector of one token, `[columns]`.
    pub fn row(&self, token: usize) -> Vec<bf16> {
        self.0.iter().map(|column| column[token]).collect()
    }
}

/// Adds `weight · column` to `scores`; `column` holds the bits of bf16 numbers.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_multiple(column: &[u16], weight: f32, scores: &mut [f32]) {
    for (score, &bits) in scores.iter_mut().zip(column) {
        *score += weight * f32::from_bits(u32::from(bits) << 16);
    }
}
