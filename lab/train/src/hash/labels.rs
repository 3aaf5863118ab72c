//! Which keys a query should find.

use std::ops::Range;

/// Tokens at either end that every pipeline reads anyway.
const ENDS: usize = 128;

/// The tokens that are looked for among `visible`: not those at the ends, where there are many more.
pub(super) fn middle(visible: usize) -> Range<usize> {
    if visible >= 8 * ENDS { ENDS..visible - ENDS } else { 0..visible }
}

/// The places of the `k` largest scores, the lower first where equal; in no order.
pub(super) fn top(scores: &[f32], k: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    if k < places.len() {
        places.select_nth_unstable_by(k, |&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        places.truncate(k);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_found_and_the_lower_of_equals() {
        let mut found = top(&[1.0, 5.0, 3.0, 5.0, 3.0, -2.0], 3);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(top(&[1.0, 2.0], 5).len(), 2);
        assert!(top(&[], 3).is_empty());
    }

    #[test]
    fn the_ends_are_left_out_of_long_contexts_only() {
        assert_eq!(middle(1024), 128..896);
        assert_eq!(middle(1023), 0..1023);
    }
}
