//! Mistakes in sampling, which counts of violated promises must find.

use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Goal,
    plugin::{Estimator, Radius, SampleStats, register, typetag},
};

/// Judges the error by a quarter of its variance.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct QuarterOfTheVariance(
    #[schemars(with = "serde_json::Value")] pub(crate) Box<dyn Estimator>,
);

#[typetag::serde(name = "quarter-of-the-variance")]
impl Estimator for QuarterOfTheVariance {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let radius = self.0.radius(stats);
        Radius { relative: radius.relative / 2.0, ..radius }
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.0.goal()
    }
}

register!(
    Estimator,
    "quarter-of-the-variance",
    QuarterOfTheVariance,
    "another, with a quarter of its variance"
);
