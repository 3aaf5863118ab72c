//! Expansion of block scores to scores of tokens.

/// Returns the score of each visible token, which is that of its block of `size` tokens.
pub(crate) fn expand_to_tokens(block_scores: Vec<f32>, size: usize, visible: usize) -> Vec<f32> {
    let mut scores = Vec::with_capacity(visible);
    for score in block_scores {
        scores.resize(visible.min(scores.len().saturating_add(size)), score);
    }
    scores
}
