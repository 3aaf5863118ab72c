//! `window`: the most recent tokens.
//!
//! The selector picks `{n − size, …, n − 1}` of `n` visible tokens, the query's own position
//! included.
//!
//! Cost: O(size) per row, no index.
//!
//! Beltagy, Peters, Cohan (2020), "Longformer: The Long-Document Transformer",
//! <https://arxiv.org/abs/2004.05150>; with a sink: Xiao et al. (2023),
//! <https://arxiv.org/abs/2309.17453>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register, typetag,
};

/// The last `size` visible tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Number of tokens.
    pub size: Size,
}

#[typetag::serde(name = "window")]
impl SelectorConfig for Window {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Window(&mut self.size))
    }
}

impl Selector for Window {
    fn group_wide(&self) -> bool {
        true
    }

    fn live(&self, live: &mut Picks) {
        let visible = live.visible();
        live.take_range(visible - self.size.to_tokens(visible)..visible);
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        picks.take_range(visible - self.size.to_tokens(visible)..visible);
    }
}

register!(Selector, "window", Window, "the most recent tokens");

#[cfg(test)]
vattention_testkit::laws!(window, Window { size: Size::Tokens(9) });
