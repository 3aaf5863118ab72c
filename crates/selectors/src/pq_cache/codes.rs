//! Codes of all tokens, and the scores that a query gives them.

use multiversion::multiversion;

use super::codebook::PartTable;

/// Codes of tokens in order, one byte per part.
#[derive(Clone, Debug)]
pub struct PartCodes {
    /// Codes, `[parts][tokens]`.
    parts: Vec<Vec<u8>>,
}

impl PartCodes {
    /// Creates an empty list of codes for keys of `parts` parts.
    pub fn new(parts: usize) -> Self {
        Self { parts: vec![Vec::new(); parts] }
    }

    /// Appends the codes `[parts]` of the next token.
    pub fn push(&mut self, codes: impl IntoIterator<Item = u8>) {
        self.parts.iter_mut().zip(codes).for_each(|(part, code)| part.push(code));
    }

    /// Code of one part of a token.
    pub fn get(&self, token: usize, part: usize) -> u8 {
        self.parts[part][token]
    }

    /// Size of the codes in bytes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    /// Adds to the score of each of the first tokens, `[visible]`, the entries of its codes in the
    /// tables `[parts]`. O(visible · parts).
    pub fn add_scores(&self, tables: &[PartTable], scores: &mut [f32]) {
        let (pairs, rest) = self.parts.as_chunks::<2>();
        let (table_pairs, rest_tables) = tables.as_chunks::<2>();
        for ([a, b], [table_a, table_b]) in pairs.iter().zip(table_pairs) {
            add_two(a, b, table_a, table_b, scores);
        }
        for (codes, table) in rest.iter().zip(rest_tables) {
            add_one(codes, table, scores);
        }
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_two(a: &[u8], b: &[u8], table_a: &PartTable, table_b: &PartTable, scores: &mut [f32]) {
    for ((score, &a), &b) in scores.iter_mut().zip(a).zip(b) {
        *score += table_a[usize::from(a)] + table_b[usize::from(b)];
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+avx512vbmi2+bmi2+popcnt+fma+f16c",
    "x86_64+avx2+fma+bmi2+popcnt+f16c"
))]
fn add_one(codes: &[u8], table: &PartTable, scores: &mut [f32]) {
    for (score, &code) in scores.iter_mut().zip(codes) {
        *score += table[usize::from(code)];
    }
}
