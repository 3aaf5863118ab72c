//! Keys that a query should find.

use std::ops::Range;

/// Number of tokens at either end, which every pipeline reads anyway.
const ENDS: usize = 128;

/// Returns the tokens that a query may find among `visible`; in long contexts, the ends are
/// excluded.
pub(super) fn middle(visible: usize) -> Range<usize> {
    if visible >= 8 * ENDS { ENDS..visible - ENDS } else { 0..visible }
}

/// Returns the indices of the `k` largest scores, in arbitrary order; among equal scores, lower
/// indices are preferred.
pub(super) fn top(scores: &[f32], k: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..scores.len()).collect();
    if k < indices.len() {
        indices.select_nth_unstable_by(k, |&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        indices.truncate(k);
    }
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_prefers_lower_indices_of_equal_scores() {
        let mut found = top(&[1.0, 5.0, 3.0, 5.0, 3.0, -2.0], 3);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(top(&[1.0, 2.0], 5).len(), 2);
        assert!(top(&[], 3).is_empty());
    }

    #[test]
    fn the_ends_are_excluded_only_in_long_contexts() {
        assert_eq!(middle(1024), 128..896);
        assert_eq!(middle(1023), 0..1023);
    }
}
