//! `every-nth`: every `n`-th token, a skeleton over the whole context.
//!
//! Takes `{0, n, 2n, …}`.
//!
//! Cost: O(visible / n) per row, no index.

use serde::{Deserialize, Serialize};
use vattention::plugin::{
    Picks, Result, Row, Selector, SelectorConfig, Site, register, schemars, typetag,
};

/// Every `n`-th token.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EveryNth {
    /// The distance between two of them.
    pub n: std::num::NonZeroUsize,
}

#[typetag::serde(name = "every-nth")]
impl SelectorConfig for EveryNth {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for EveryNth {
    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_all((0..row.visible()).step_by(self.n.get()));
    }
}

register!(Selector, "every-nth", EveryNth, "every n-th token");

#[cfg(test)]
vattention_testkit::laws!(every_fourth, EveryNth { n: std::num::NonZeroUsize::new(4).unwrap() });
