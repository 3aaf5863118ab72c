//! Vectors of all tokens, stored by coordinate, so that a product with some coordinates reads only
//! these.

use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

use crate::Segmented;

/// Vectors of all tokens, `[columns][tokens]`, in bf16, which has the range of f32.
#[derive(Clone, Debug)]
pub struct Columns {
    count: usize,
    columns: Segmented<Vec<Vec<bf16>>>,
}

impl Columns {
    /// Creates `count` columns without tokens.
    ///
    /// # Panics
    /// If there is no column.
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "at least one column");
        Self { count, columns: Segmented::new(vec![Vec::new(); count]) }
    }

    /// Number of columns.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Adds the vector of the next token, `[columns]`, rounded to bf16.
    pub fn push(&mut self, numbers: &[f32]) {
        for (column, &x) in self.columns.own_mut().iter_mut().zip(numbers) {
            column.push(bf16::from_f32(x));
        }
    }

    /// Removes all but the first `tokens` vectors.
    pub fn truncate(&mut self, tokens: usize) {
        self.columns.truncate(tokens);
    }

    /// Moves the columns to memory that later clones share.
    pub fn share(&mut self) {
        self.columns.share();
    }

    /// Adds `weight` times a column to the scores of the first tokens, `[visible]`.
    pub fn add_multiple(&self, column: usize, weight: f32, scores: &mut [f32]) {
        for (tokens, columns) in self.columns.segments(scores.len()) {
            add_multiple(columns[column].reinterpret_cast(), weight, &mut scores[tokens]);
        }
    }

    /// Bytes of the columns: 2 for each token and column. Shared memory is
    /// [divided](Segmented::bytes) among those that use it.
    pub fn bytes(&self) -> usize {
        self.columns.bytes()
    }

    /// Vector of one token, `[columns]`.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn row(&self, token: usize) -> Vec<bf16> {
        let (tokens, columns) = self.columns.segment_of(token);
        columns.iter().map(|column| column[token - tokens.start]).collect()
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
