//! The tokens that a call read, as compressed sparse rows.

use std::sync::Arc;

/// Tokens that each row of a call read, with their inclusion probabilities, as compressed sparse
/// rows in (query, query head) order.
///
/// Row `r` has the tokens `indices[indptr[r]..indptr[r + 1]]`, ascending, and the `probabilities`
/// at the same places.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Offset of each row's first token in `indices`, and the end of the last row, `[rows + 1]`.
    pub indptr: Vec<usize>,
    /// Tokens read.
    pub indices: Vec<u32>,
    /// Inclusion probability of each token read.
    pub probabilities: Vec<f32>,
    /// Tokens of each row that its selectors had not evicted, ascending; `None` means all visible
    /// tokens. The rows of a KV head share one allocation.
    pub live: Vec<Option<Arc<[u32]>>>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { indptr: vec![0], indices: Vec::new(), probabilities: Vec::new(), live: Vec::new() }
    }
}

impl Selection {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Adds a row: token `indices`, ascending, their `probabilities`, and the
    /// [live](Self::live) tokens.
    pub fn push(&mut self, indices: &[u32], probabilities: &[f32], live: Option<Arc<[u32]>>) {
        self.live.push(live);
        self.indices.extend_from_slice(indices);
        self.probabilities.extend_from_slice(probabilities);
        self.indptr.push(self.indices.len());
    }

    /// Returns the tokens and inclusion probabilities of one row.
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let span = self.indptr[row]..self.indptr[row + 1];
        (&self.indices[span.clone()], &self.probabilities[span])
    }
}
