//! What a sample says of its own error: the moments of a uniform one, and of one whose tokens were drawn with probabilities
//! of their own. `docs/guarantees.md` in the repository has the equations.

pub use vattention_core::{
    SampleStats,
    sample::{
        Centre, Deviations, LAGS, Moments, Sample, Weighed, Within, drift, mean_of_lagged_squares,
        scale_up,
    },
};
