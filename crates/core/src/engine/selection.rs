//! What a whole call read, as compressed sparse rows.

use std::sync::Arc;

/// The picks of every row of a call, in (query, query head) order.
///
/// Row `r` holds `indices[indptr[r]..indptr[r + 1]]`, ascending, and as many probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Where each row begins, `[rows + 1]`.
    pub indptr: Vec<usize>,
    /// Tokens read.
    pub indices: Vec<u32>,
    /// Their inclusion probabilities.
    pub probabilities: Vec<f32>,
    /// Of each row the tokens that its selectors had not evicted, ascending; `None` is all that are visible. Rows of a KV head
    /// share the list.
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

    /// Adds a row: `indices`, ascending, as many `probabilities`, and what was [live](Self::live).
    pub fn push(&mut self, indices: &[u32], probabilities: &[f32], live: Option<Arc<[u32]>>) {
        self.live.push(live);
        self.indices.extend_from_slice(indices);
        self.probabilities.extend_from_slice(probabilities);
        self.indptr.push(self.indices.len());
    }

    /// The tokens and inclusion probabilities of one row.
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let span = self.indptr[row]..self.indptr[row + 1];
        (&self.indices[span.clone()], &self.probabilities[span])
    }
}
