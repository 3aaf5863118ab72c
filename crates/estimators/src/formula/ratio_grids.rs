//! Tables of the ratio estimator, computed at their first use.

use std::sync::{Arc, OnceLock};

use super::RatioGrid;

/// Cache of tables, one for each delta of a row, and for each value dimension if tables depend on
/// it. Clones share the tables.
#[derive(Clone, Default)]
pub struct RatioGrids(Arc<OnceLock<GridNode>>);

/// Node of a list of tables, which are never removed, so that readers need no lock.
struct GridNode {
    grid: RatioGrid,
    next: OnceLock<Box<GridNode>>,
}

impl RatioGrids {
    /// Table for a delta and values of `rank` elements; the first call takes tens of milliseconds.
    pub fn get(&self, delta: f64, rank: usize) -> &RatioGrid {
        let new = || GridNode { grid: RatioGrid::new(delta, rank), next: OnceLock::new() };
        let mut node = self.0.get_or_init(new);
        while !node.grid.fits(delta, rank) {
            node = node.next.get_or_init(|| Box::new(new()));
        }
        &node.grid
    }
}

impl std::fmt::Debug for RatioGrids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RatioGrids")
    }
}
