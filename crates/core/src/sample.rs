//! Samples of the residual and the statistics from which their error is bounded, for uniform
//! samples and for designs with other inclusion probabilities. The equations are in
//! `docs/guarantees.md` of the repository.

mod accumulator;
pub(crate) mod order;
mod residual;
pub(crate) mod stats;
mod stratification;
pub(crate) mod sums;
mod uniforms;
mod unseen;
mod variance_terms;
mod weighed;

pub use accumulator::{Accumulator, ExactAccumulator, RemainingWork, SampleUse, compute_weighed};
pub use order::{Draws, Order};
pub use residual::Residual;
pub use stats::{
    ALLOWANCE, Deviations, LAGS, Moments, Sample, SampleStats, drift, max_or_nan,
    mean_of_lagged_squares, scale_up,
};
pub use stratification::Stratification;
pub use uniforms::Uniforms;
pub use unseen::MissBounds;
pub use variance_terms::{TokenSquares, TokenWeights, Variance, WeighedSample, inverse_rank};
pub use weighed::{Centre, SampleTotals, StratumCentres, WeightedTokens};
