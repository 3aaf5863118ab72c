//! Mistakes in sampling, which counts of violated promises must find.

use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Demand,
    plugin::{BudgetEstimator, Radius, SampleStats, register, typetag},
};

/// Judges the error by a quarter of its variance.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct QuarterOfTheVariance(
    #[schemars(with = "serde_json::Value")] pub(crate) Box<dyn BudgetEstimator>,
);

#[typetag::serde(name = "quarter-of-the-variance")]
impl BudgetEstimator for QuarterOfTheVariance {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let radius = self.0.radius(stats);
        Radius { relative: radius.relative / 2.0, ..radius }
    }

    fn demand(&self) -> Demand {
        self.0.demand()
    }
}

register!(
    Estimator,
    "quarter-of-the-variance",
    QuarterOfTheVariance,
    "another, with a quarter of its variance"
);
