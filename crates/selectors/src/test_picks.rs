//! Picks of a selector, for tests.

use vattention_core::{Picks, Row, Selector};

/// Returns all tokens picked for a row, the `taken` ones included, which were picked before.
pub(crate) fn pick(selector: &dyn Selector, row: &Row<'_>, taken: &[usize]) -> Vec<usize> {
    let mut picks = Picks::new(row.visible());
    picks.take_all(taken.iter().copied());
    selector.select(row, &mut picks);
    picks.iter().collect()
}
