//! Formulas of the estimators, as plain functions of numbers.

mod bernstein;
mod bounded;
mod finite;
mod quantile;
mod ratio_grid;
mod ratio_grids;
mod relative;
mod sdpa;
mod split;

pub use bernstein::{bernstein_radius, output_error, relative_error, upper_bound};
pub use bounded::{
    McDiarmid, empirical_bernstein, hoeffding, hoeffding_radius, mcdiarmid_radius,
    mcdiarmid_radius_of, serfling, serfling_factor,
};
pub use finite::{fpc, unbounded, whole_tokens};
pub use quantile::{c2, chi2_isf, kappa, q_rob, sub_gaussian, z_one, z_two};
pub use ratio_grid::{DeltaSplit, RatioGrid, ratio_grid};
pub use ratio_grids::RatioGrids;
pub use relative::{bar_of_radius, radius_of_bar, radius_of_sure_bar, sure_bar_of_radius};
pub use sdpa::{Combine, SdpaSplit, sdpa, sdpa_error, sdpa_exact, sdpa_paper};
