//! The mathematics behind the estimators, as plain functions of numbers.

mod finite;
mod quantile;
mod ratio_grid;
mod sdpa;
mod split;

pub use finite::{fpc, whole_tokens};
pub use quantile::{c2, chi2_isf, kappa, q_rob, z_one, z_two};
pub use ratio_grid::{RatioGrid, ratio_grid};
pub use sdpa::{SdpaSplit, sdpa_exact, sdpa_paper};
