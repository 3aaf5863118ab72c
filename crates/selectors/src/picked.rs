//! What a selector picks: for tests.

use vattention_core::{Picks, Row, Selector};

/// All that is picked for a row in the end, of which some were `taken` before.
pub(crate) fn picked(selector: &dyn Selector, row: &Row<'_>, taken: &[usize]) -> Vec<usize> {
    let mut picks = Picks::new(row.visible());
    picks.take_all(taken.iter().copied());
    selector.select(row, &mut picks);
    picks.iter().collect()
}
