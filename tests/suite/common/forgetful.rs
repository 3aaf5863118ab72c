//! A selector that misses heavy tokens, as approximate ones do.

use ndarray_rand::rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Result, Size,
    plugin::{Picks, Row, Score, Selector, SelectorConfig, Site, register, typetag},
};

/// Exact top-k that overlooks tokens at random, the same ones each time.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Forgetful {
    pub(crate) size: Size,
    pub(crate) recall: f64,
}

#[typetag::serde(name = "forgetful")]
impl SelectorConfig for Forgetful {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

register!(Selector, "forgetful", Forgetful, "exact top-k that overlooks tokens");

impl Selector for Forgetful {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut scores = row.scores(Score::Head);
        for score in &mut scores {
            if rng.random_bool(1.0 - self.recall) {
                *score = f32::NEG_INFINITY;
            }
        }
        picks.take_top(self.size.of(row.visible()), &scores);
    }
}
