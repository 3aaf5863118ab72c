//! `sink`: the first tokens, which receive much attention at most heads whatever the query.
//!
//! The selector picks `{0, …, size − 1}`.
//!
//! Cost: O(size) per row, no index.
//!
//! Xiao, Tian, Chen, Han, Lewis (2023), "Efficient Streaming Language Models with Attention
//! Sinks", <https://arxiv.org/abs/2309.17453>.

use serde::{Deserialize, Serialize};
use vattention_core::schemars::{self, JsonSchema};
use vattention_core::{
    Picks, Result, Row, Selector, SelectorConfig, Site, Size, plugin::Tunable, register, typetag,
};

/// The first `size` tokens.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sink {
    /// Number of tokens.
    pub size: Size,
}

#[typetag::serde(name = "sink")]
impl SelectorConfig for Sink {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Sink)
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl Selector for Sink {
    fn can_truncate(&self) -> bool {
        true
    }

    fn sharing_obstacle(&self) -> Option<&'static str> {
        None
    }

    fn group_wide(&self) -> bool {
        true
    }

    fn live(&self, live: &mut Picks) {
        // A share grows with the context.
        let end = if let Size::Tokens(tokens) = self.size { tokens } else { live.visible() };
        live.take_range(0..end);
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        SelectorConfig::tunable(self)
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        picks.take_range(0..self.size.to_tokens(row.visible()));
    }
}

register!(Selector, "sink", Sink, "the first tokens");

#[cfg(test)]
vattention_testkit::laws!(sink, Sink { size: Size::Tokens(9) });
