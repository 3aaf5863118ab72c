//! Scores of blocks as scores of their tokens.

/// The score of each visible token, that of its block of `size` tokens.
pub(crate) fn per_token(of_blocks: Vec<f32>, size: usize, visible: usize) -> Vec<f32> {
    let mut scores = Vec::with_capacity(visible);
    for score in of_blocks {
        scores.resize(visible.min(scores.len().saturating_add(size)), score);
    }
    scores
}
