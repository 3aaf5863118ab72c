//! Plug-ins with a mistake, for the table and for the messages about broken promises.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Estimator, Goal, Picks, Result, Row, SampleStats, Selector, SelectorConfig, Site, Size,
    plugin::Radius, register, step::Score, typetag,
};
use vattention_estimators::Ratio;

/// Exact top-k that misses one token of eleven, among them one of the needles.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Forgetful {
    size: Size,
}

#[typetag::serde(name = "forgetful")]
impl SelectorConfig for Forgetful {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "forgetful", Forgetful, "exact top-k that misses tokens");

impl Selector for Forgetful {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let mut scores = row.scores(Score::Head).into_owned();
        for score in scores.iter_mut().skip(3).step_by(11) {
            *score = f32::NEG_INFINITY;
        }
        picks.take_top(self.size.to_tokens(row.visible()), &scores);
    }
}

/// `ratio` with error bars of 0.3 times the right width.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Narrow {
    #[serde(flatten)]
    ratio: Ratio,
}

#[typetag::serde(name = "narrow")]
impl Estimator for Narrow {
    fn radius(&self, stats: &SampleStats) -> Radius {
        let Radius { relative, kind, assumes } = self.ratio.radius(stats);
        Radius::new(0.3 * relative, kind, assumes)
    }

    fn goal(&self) -> Result<Goal, &'static str> {
        self.ratio.goal()
    }
}

register!(Estimator, "narrow", Narrow, "error bars that are too narrow");
