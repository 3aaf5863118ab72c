//! Statistics that estimate the error of a sample: moments of a uniform sample, and of a sample
//! with unequal inclusion probabilities. `docs/guarantees.md` in the repository has the equations.

pub use vattention_core::{
    SampleStats,
    sample::{
        Centre, Deviations, LAGS, Moments, Sample, SampleTotals, StratumCentres, TokenSquares,
        TokenWeights, WeighedSample, WeightedTokens, drift, inverse_rank, mean_of_lagged_squares,
        scale_up,
    },
};
