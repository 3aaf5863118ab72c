//! Tables of the ratio estimator, computed at their first use.

use std::sync::{Arc, PoisonError, RwLock};

use super::RatioGrid;

/// Cache of tables, one for each delta of a row, and for each value dimension if tables depend on
/// it. Clones share the tables.
#[derive(Clone, Default)]
pub struct RatioGrids(Arc<RwLock<Vec<Arc<RatioGrid>>>>);

impl RatioGrids {
    /// Table for a delta and values of `rank` elements; the first call takes tens of milliseconds.
    pub fn get(&self, delta: f64, rank: usize) -> Arc<RatioGrid> {
        let find =
            |grids: &[Arc<RatioGrid>]| grids.iter().find(|grid| grid.fits(delta, rank)).cloned();
        let found = find(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        found.unwrap_or_else(|| {
            let mut grids = self.0.write().unwrap_or_else(PoisonError::into_inner);
            find(&grids).unwrap_or_else(|| {
                let grid = Arc::new(RatioGrid::new(delta, rank));
                grids.push(grid.clone());
                grid
            })
        })
    }
}

impl std::fmt::Debug for RatioGrids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RatioGrids")
    }
}
