//! The mathematics behind the estimators, as plain functions of numbers.

mod bounded;
mod finite;
mod quantile;
mod ratio_grid;
mod sdpa;
mod split;

pub use bounded::{
    fewest_draws, hoeffding, hoeffding_radius, mcdiarmid_radius, mcdiarmid_radius_of, serfling,
    serfling_factor,
};
pub use finite::{fpc, whole_tokens};
pub use quantile::{c2, chi2_isf, kappa, q_rob, sub_gaussian, z_one, z_two};
pub use ratio_grid::{RatioGrid, ratio_grid};
pub use sdpa::{Combination, SdpaSplit, sdpa, sdpa_exact, sdpa_paper};
