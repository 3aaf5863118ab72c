//! `window`: the most recent tokens.
//!
//! The selector picks `{n − size, …, n − 1}` of `n` visible tokens, the query's own position
//! included. An aligned window begins at the last multiple of `size` instead, `{size ·
//! ⌊(n − 1) / size⌋, …, n − 1}`: the sequence is cut into chunks, as in Llama 4.
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
    /// True if the window begins at a multiple of `size`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aligned: bool,
}

impl Window {
    /// First token of the window of a query that sees `visible` tokens.
    fn first(&self, visible: usize) -> usize {
        let size = self.size.to_tokens(visible);
        if self.aligned { visible.saturating_sub(1) / size.max(1) * size } else { visible - size }
    }
}

#[typetag::serde(name = "window")]
impl SelectorConfig for Window {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }

    fn tunable(&mut self) -> Option<Tunable<'_>> {
        Some(Tunable::Window(&mut self.size))
    }

    fn is_rotation_invariant(&self) -> bool {
        true
    }
}

impl Selector for Window {
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
        let visible = live.visible();
        // A growing share of the tokens may begin at an earlier multiple.
        let moves_back = self.aligned && self.size.share().is_some();
        live.take_range(if moves_back { 0 } else { self.first(visible) }..visible);
    }

    fn adjustable(&mut self) -> Option<Tunable<'_>> {
        SelectorConfig::tunable(self)
    }

    fn select(&self, row: &Row<'_>, picks: &mut Picks) {
        let visible = row.visible();
        picks.take_range(self.first(visible)..visible);
    }
}

register!(Selector, "window", Window, "the most recent tokens");

#[cfg(test)]
vattention_testkit::laws!(window, Window { size: Size::Tokens(9), aligned: false });

#[cfg(test)]
vattention_testkit::laws!(aligned_window, Window { size: Size::Tokens(9), aligned: true });

#[cfg(test)]
mod tests {
    use vattention_core::Fraction;

    use super::*;

    #[test]
    fn aligned_windows_begin_at_multiples_of_their_size() {
        let window = Window { size: Size::Tokens(4), aligned: true };
        let first: Vec<usize> = (1..10).map(|visible| window.first(visible)).collect();
        assert_eq!(first, [0, 0, 0, 0, 4, 4, 4, 4, 8]);
    }

    #[test]
    fn tokens_before_an_aligned_window_of_a_growing_share_stay_live() {
        let window = Window { size: Size::Share(Fraction::try_from(0.5).unwrap()), aligned: true };
        assert_eq!([window.first(9), window.first(10)], [8, 5]);
        let mut live = Picks::new(9);
        window.live(&mut live);
        assert!((5..9).all(|token| live.contains(token)));
    }
}
